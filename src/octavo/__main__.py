"""`python -m octavo`, and the `octavo` command. Knows only where the command line lives."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Ctrl-C ends without a traceback too while modules are loaded, and while the interpreter ends."""
    try:
        from octavo.cli.main import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    main()
