"""Who may ask `octavo serve`, and how much: its options as settings, at the start and again. Knows no server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import typer
from typer.exceptions import TyperException

from octavo.cli.options import flag_of
from octavo.cli.values import ARGUMENTS
from octavo.config import ProfileName
from octavo.errors import SettingsError
from octavo.server.access import Access, Limits

__all__ = ["KEY_VARIABLE", "access_of", "rereading"]

_logger = logging.getLogger(__name__)

KEY_VARIABLE = "OCTAVO_API_KEY"

_OPTIONS = frozenset(
    {
        "api_key",
        "api_key_file",
        "key_profile",
        "cache_scope",
        "metrics_without_key",
        "max_requests_per_key",
        "requests_per_minute",
        "tokens_per_minute",
        "max_queued_requests",
        "max_queued_tokens",
    }
)
"""By their parameters' names. They may change while the server runs; all others wait for its next start."""


def access_of(options: Mapping[str, Any]) -> Access:
    """`options`: what the command has got, by parameter. Raises typer.BadParameter."""
    keys = tuple(options["api_key"] or ())
    if not keys and KEY_VARIABLE in os.environ:  # set and empty: a key was meant, and typer takes it for none
        keys = ("",)
    file = options["api_key_file"]
    return Access(
        api_keys=keys,
        key_profiles=_profiles(options["key_profile"] or (), keys),
        key_file=None if file is None else str(Path(file).absolute()),
        cache_per_key=options["cache_scope"] == "key",
        metrics_without_key=options["metrics_without_key"],
        each_key=Limits(
            max_requests=options["max_requests_per_key"],
            requests_per_minute=options["requests_per_minute"],
            tokens_per_minute=options["tokens_per_minute"],
        ),
        max_queued_requests=options["max_queued_requests"],
        max_queued_tokens=options["max_queued_tokens"],
    )


def rereading(context: typer.Context) -> Callable[[], Access]:
    """What reads the same command line again, and with it the file of `--config`, which may have changed. It raises
    SettingsError and OSError."""
    arguments, before = context.meta[ARGUMENTS], dict(context.params)
    source = context.get_parameter_source("api_key")
    # The variable is gone by then: it is kept from the processes that this one starts.
    kept = {"api_key": before["api_key"]} if source is not None and source.name == "ENVIRONMENT" else {}

    def reread() -> Access:
        try:
            again = context.command.make_context(context.info_name, list(arguments), parent=context.parent)
            access = access_of(again.params | kept)
        except TyperException as error:
            raise SettingsError(error.format_message()) from None
        late = [
            name for name, value in again.params.items() if name not in _OPTIONS and value != before[name]
        ]
        if late:
            names = ", ".join(flag_of(name).removeprefix("--") for name in sorted(late))
            _logger.warning("changed, but not before the server is started again: %s", names)
        return access

    return reread


def _profiles(given: Sequence[str], keys: Sequence[str]) -> dict[int, ProfileName]:
    profiles: dict[int, ProfileName] = {}
    for text in given:
        number, _, name = text.partition("=")
        if not number.isdecimal() or name not in get_args(ProfileName):
            raise typer.BadParameter(
                f"{text!r} is not a key's number and a profile, such as 2=batch; profiles are "
                f"{', '.join(get_args(ProfileName))}.",
                param_hint="--key-profile",
            )
        if not 1 <= int(number) <= len(keys):
            raise typer.BadParameter(
                f"{text!r} is for key {number}, and --api-key was given {len(keys)} times; keys count from 1.",
                param_hint="--key-profile",
            )
        profiles[int(number) - 1] = cast(ProfileName, name)
    return profiles
