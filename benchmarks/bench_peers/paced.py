"""`octavo serve` over an engine that computes nothing and keeps a pace: times that do not depend on a busy machine.

python -m benchmarks.bench_peers.paced smollm2 --port 0 --data-dir FOLDER [--rate 50] [--prompt-rate 500]
"""

from __future__ import annotations

import argparse
import sys

from octavo.config import EngineConfig
from octavo.models.store import open_model
from octavo.server.edge import Edge
from octavo.server.run import run

__all__: list[str] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="whose vocabulary it has")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens of each stream a second")
    parser.add_argument("--prompt-rate", type=float, default=500.0, help="tokens of each prompt a second")
    options = parser.parse_args()
    pace = ["--rate", str(options.rate), "--prompt-rate", str(options.prompt_rate)]
    run(
        EngineConfig(model_dir=str(open_model(options.model).dir)),
        model_name=options.model,
        port=options.port,
        data_dir=options.data_dir,
        engine_command=(sys.executable, "-m", "benchmarks.null_engine", *pace),
        edge=Edge(access_log=False),
        on_ready=lambda address, _: print(f"A paced server on {address}", flush=True),
    )


if __name__ == "__main__":
    main()
