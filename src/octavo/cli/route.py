"""`octavo route`: learns which tier can answer what, finds thresholds, and decides. Knows arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.panels import PanelCommand
from octavo.cli.values import QuickGroup

__all__ = ["app"]

_EXAMPLES = """Examples:
  octavo route train labels.csv.gz --out policy.npz
  octavo route evaluate labels.csv.gz --policy policy.npz
  octavo route calibrate logs.csv --policy policy.npz --quality 0.95
  octavo route calibrate logs.csv --policy policy.npz --budget '$20/day' --prices 'weak=0.0002,strong=0.01'
  octavo route decide "What is the capital of Peru?" --policy policy.npz

docs/routing.md says what is in a label file, and how good it is."""

app = typer.Typer(
    cls=QuickGroup,
    no_args_is_help=True,
    help="The cheapest tier that can answer: train, evaluate, calibrate, decide.",
    rich_markup_mode=None,
)

_DATA, _LEARNING, _TARGET, _OUTPUT = "The data", "Learning", "The target", "What is shown"

_Labels = Annotated[
    Path,
    typer.Argument(
        metavar="LABELS",
        help="CSV or JSONL, perhaps gzipped: a prompt and, for each tier, whether it was right.",
    ),
]
_Tiers = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        rich_help_panel=_DATA,
        help="Tiers or their columns, the cheapest first; without it the columns that end in _correct.",
    ),
]
_Prompt = Annotated[
    str, typer.Option("--prompt-column", metavar="NAME", rich_help_panel=_DATA, help="Of the prompts.")
]
_Task = Annotated[
    str | None,
    typer.Option(
        "--task-column",
        metavar="NAME",
        rich_help_panel=_DATA,
        help="For the report alone; task, where there is one.",
    ),
]
_Prices = Annotated[
    str | None,
    typer.Option(
        metavar="PRICES",
        rich_help_panel=_DATA,
        help="Of a request, such as 'weak=0.0002,strong=0.01'; else the columns that end in _cost.",
    ),
]
_Seed = Annotated[
    int,
    typer.Option(min=0, metavar="NUMBER", rich_help_panel=_LEARNING, help="Of the split and the draws."),
]
_Share = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=0.9,
        metavar="SHARE",
        rich_help_panel=_LEARNING,
        help="Of the rows, kept for the test.",
    ),
]
_Embedding = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        rich_help_panel=_LEARNING,
        help="Hidden states of this model are looked at too; none does without.",
    ),
]
_Layers = Annotated[
    int,
    typer.Option(min=1, metavar="COUNT", rich_help_panel=_LEARNING, help="Of that model, from the first on."),
]
_Tokens = Annotated[
    int,
    typer.Option(
        min=16, max=4096, metavar="COUNT", rich_help_panel=_LEARNING, help="Of a prompt that it reads."
    ),
]
_Policy = Annotated[
    Path,
    typer.Option("--policy", metavar="FILE", rich_help_panel=_DATA, help="What octavo route train made."),
]
_Quality = Annotated[
    float,
    typer.Option(
        min=0.01, max=1.5, metavar="SHARE", rich_help_panel=_TARGET, help="Of the best tier's right answers."
    ),
]
_Json = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=_OUTPUT, help="Print one JSON object in place of the tables."),
]


@app.command(cls=PanelCommand, epilog=_EXAMPLES)
def train(
    labels: _Labels,
    *,
    out: Annotated[
        Path, typer.Option(metavar="FILE", rich_help_panel=_OUTPUT, help="Where the policy goes.")
    ] = Path("policy.npz"),
    tiers: _Tiers = None,
    prompt_column: _Prompt = "prompt",
    task_column: _Task = None,
    prices: _Prices = None,
    seed: _Seed = 0,
    test_share: _Share = 0.3,
    embedding: _Embedding = "smollm2",
    embedding_layers: _Layers = 4,
    embedding_tokens: _Tokens = 128,
    quality: _Quality = 0.95,
    json: _Json = False,
) -> None:
    """Learn from labels which tier is right about what, and keep it as a policy with a first threshold.

    Near duplicates are kept on one side of the split. Needs scikit-learn: pip install 'octavo[route]'.
    """
    from octavo.cli.route_data import Data, Learning
    from octavo.cli.route_run import train_policy

    train_policy(
        Data(labels, tiers, prompt_column, task_column, prices),
        Learning(
            seed, test_share, None if embedding == "none" else embedding, embedding_layers, embedding_tokens
        ),
        quality,
        out,
        json=json,
    )


@app.command(cls=PanelCommand)
def evaluate(
    labels: _Labels,
    *,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            rich_help_panel=_DATA,
            help="Tried on the rows that it was not trained on.",
        ),
    ] = None,
    tiers: _Tiers = None,
    prompt_column: _Prompt = "prompt",
    task_column: _Task = None,
    prices: _Prices = None,
    seed: _Seed = 0,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=50,
            metavar="COUNT",
            rich_help_panel=_LEARNING,
            help="Without a policy: splits to train on.",
        ),
    ] = 1,
    test_share: Annotated[
        float,
        typer.Option(
            min=0.05,
            max=0.9,
            metavar="SHARE",
            rich_help_panel=_LEARNING,
            help="Of the rows, kept for the test.",
        ),
    ] = 0.3,
    embedding: _Embedding = "smollm2",
    embedding_layers: _Layers = 4,
    embedding_tokens: _Tokens = 128,
    quality: _Quality = 0.95,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain/--no-plain",
            rich_help_panel=_OUTPUT,
            help="Train a plain TF-IDF baseline on the other rows, and compare with it.",
        ),
    ] = True,
    json: _Json = False,
) -> None:
    """Say how good routing is on rows that were not learnt from, together and by task, with intervals."""
    from octavo.cli.route_data import Data, Learning
    from octavo.cli.route_run import evaluate_policy

    evaluate_policy(
        Data(labels, tiers, prompt_column, task_column, prices),
        Learning(
            seed, test_share, None if embedding == "none" else embedding, embedding_layers, embedding_tokens
        ),
        policy,
        seeds,
        quality,
        plain=plain,
        json=json,
    )


@app.command(cls=PanelCommand)
def calibrate(
    logs: _Labels,
    *,
    policy: _Policy,
    quality: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.5,
            metavar="SHARE",
            rich_help_panel=_TARGET,
            help="Of the best tier's right answers.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="MONEY",
            rich_help_panel=_TARGET,
            help="Such as $20/day; an hour, a week, a month or a request too.",
        ),
    ] = None,
    requests_per_day: Annotated[
        float | None,
        typer.Option(
            metavar="COUNT", rich_help_panel=_TARGET, help="For a budget; else from the logs' column time."
        ),
    ] = None,
    tiers: _Tiers = None,
    prompt_column: _Prompt = "prompt",
    prices: _Prices = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="NUMBER", rich_help_panel=_TARGET, help="Of the draws.")
    ] = 0,
    careful: Annotated[
        bool,
        typer.Option(
            "--careful",
            rich_help_panel=_TARGET,
            help="Take the end of the interval that is surer to meet it.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_OUTPUT,
            help="Write the policy with the new threshold.",
        ),
    ] = None,
    json: _Json = False,
) -> None:
    """Find the threshold for a share of the best tier's quality, or for a budget, on labelled logs of your own.

    Rows that the policy was trained on are left out.
    """
    from octavo.cli.route_calibrate import Target, calibrate_policy
    from octavo.cli.route_data import Data

    calibrate_policy(
        Data(logs, tiers, prompt_column, None, prices),
        policy,
        Target(quality, budget, requests_per_day, careful),
        seed,
        out,
        json=json,
    )


@app.command(cls=PanelCommand)
def decide(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from standard input.")
    ],
    *,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="FILE|NAME",
            rich_help_panel=_DATA,
            help="What octavo route train made, or one to begin with: factual, mathematics, essay, or starting, which "
            "takes the one that fits.",
        ),
    ] = "starting",
    threshold: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", rich_help_panel=_TARGET, help="Instead of the policy's own."),
    ] = None,
    json: _Json = False,
) -> None:
    """Say which tier a prompt would go to, and why. Nothing is sent anywhere."""
    from octavo.cli.route_run import decide_prompt

    decide_prompt(prompt, policy, threshold, json=json)


@app.command(cls=PanelCommand)
def check(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="reask, drift or judge.")],
    *,
    tiers: Annotated[
        Path | None,
        typer.Option(
            metavar="TIERS.toml", rich_help_panel=_DATA, help="For a judge: the file that it is a tier of."
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=_DATA, help="The tier; else the one that the file names."
        ),
    ] = None,
    json: _Json = False,
) -> None:
    """Say how often feedback's conclusions are right, on small labelled sets that came with Octavo.

    A judge that is no better than chance is an error.
    """
    from octavo.cli.route_check import check_feedback

    check_feedback(subject, tiers, judge, json=json)


_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a policy's versions.")]


@app.command(cls=PanelCommand)
def versions(
    folder: _Folder,
    *,
    add: Annotated[
        Path | None,
        typer.Option(
            "--add", metavar="FILE", rich_help_panel=_DATA, help="A policy that decides from now on."
        ),
    ] = None,
    json: _Json = False,
) -> None:
    """Show the versions of a policy, and which of them decides; --add makes another one of a file.

    A gateway whose [decider] policy is the folder takes it with the next request.
    """
    from octavo.cli.route_versions import show_versions

    show_versions(folder, add, json=json)


@app.command(cls=PanelCommand)
def rollback(
    folder: _Folder,
    *,
    to: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="NUMBER", rich_help_panel=_DATA, help="The version; else the one before."
        ),
    ] = None,
) -> None:
    """Let an earlier version of a policy decide again. None is lost."""
    from octavo.cli.route_versions import roll_policy_back

    roll_policy_back(folder, to)


@app.command(cls=PanelCommand)
def recalibrate(
    folder: _Folder,
    *,
    outcomes: Annotated[
        Path,
        typer.Option(metavar="FILE", rich_help_panel=_DATA, help="What the gateway wrote of its answers."),
    ],
    quality: _Quality = 0.95,
    source: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_DATA,
            help="Whose outcomes: said (by users), reask or judge.",
        ),
    ] = "said",
    tiers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            rich_help_panel=_DATA,
            help="What the gateway calls the policy's two tiers, in the policy's order.",
        ),
    ] = None,
    careful: Annotated[
        bool,
        typer.Option(
            "--careful", rich_help_panel=_TARGET, help="Take the end of the interval that is surer."
        ),
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry", rich_help_panel=_OUTPUT, help="Show it, and write no version.")
    ] = False,
    json: _Json = False,
) -> None:
    """Find the threshold anew from outcomes of real requests, as a new version that decides from now on."""
    from octavo.cli.route_versions import recalibrate_policy

    recalibrate_policy(folder, outcomes, quality, source, tiers, careful=careful, dry=dry, json=json)
