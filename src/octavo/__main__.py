"""`python -m octavo`, and the `octavo` command. Knows only where the command line lives."""

from __future__ import annotations

import sys

from octavo.cli.main import run


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
