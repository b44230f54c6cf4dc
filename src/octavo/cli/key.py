"""`octavo key`: makes API keys and keeps the file of their hashes. Knows the terminal; the file is in server/key_file.

A key is shown once, when it is made: nothing can bring it back from its hash.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.values import QuickCommand, QuickGroup
from octavo.config import ProfileName
from octavo.errors import SettingsError

if TYPE_CHECKING:
    from octavo.server.key_file import KeyEntry

__all__ = ["app"]

PREFIX = "sk-octavo-"
"""So that people, and programs that look for lost secrets, see what it is."""
SHORTEST = 22
"""Characters of a key of one's own: as many as 128 random bits have in base64."""

app = typer.Typer(
    cls=QuickGroup,
    no_args_is_help=True,
    help="Make API keys, and keep the file of their hashes.",
    rich_markup_mode=None,
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The key file.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is: for the log and for you.")]
_Profile = Annotated[ProfileName | None, typer.Option(help="Of its requests that name none.")]
_MaxRequests = Annotated[
    int | None, typer.Option(min=1, metavar="COUNT", help="Its requests that may run at once.")
]
_PerMinute = Annotated[int | None, typer.Option(min=1, metavar="COUNT", help="Its requests in a minute.")]
_Tokens = Annotated[
    int | None, typer.Option(min=1, metavar="COUNT", help="Its tokens in a minute, of prompts and answers.")
]
_Scope = Annotated[
    Literal["key", "server"] | None,
    typer.Option(help="Whether it finds only what its own requests computed."),
]


@app.command(cls=QuickCommand)
def new(
    file: _File,
    name: _Name,
    profile: _Profile = None,
    max_requests: _MaxRequests = None,
    requests_per_minute: _PerMinute = None,
    tokens_per_minute: _Tokens = None,
    cache_scope: _Scope = None,
) -> None:
    """Make a key, print it, once, and write its hash into FILE."""
    key = PREFIX + secrets.token_urlsafe(32)
    _add(
        file,
        name,
        key,
        profile=profile,
        max_requests=max_requests,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        cache_scope=cache_scope,
    )
    print(key)


@app.command(cls=QuickCommand)
def add(
    file: _File,
    name: _Name,
    profile: _Profile = None,
    max_requests: _MaxRequests = None,
    requests_per_minute: _PerMinute = None,
    tokens_per_minute: _Tokens = None,
    cache_scope: _Scope = None,
) -> None:
    """Read a key that there is already from the standard input, and write its hash into FILE."""
    if sys.stdin.isatty():
        import getpass

        key = getpass.getpass("The key: ")
    else:
        key = sys.stdin.readline().rstrip("\r\n")
    if len(key) < SHORTEST:
        raise SettingsError(
            f"The key has {len(key)} characters; it must have {SHORTEST} or more, and be random: a shorter one could "
            f"be guessed from its hash. octavo key new {file} {name} makes one."
        )
    _add(
        file,
        name,
        key,
        profile=profile,
        max_requests=max_requests,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        cache_scope=cache_scope,
    )


@app.command("list", cls=QuickCommand)
def list_keys(file: _File) -> None:
    """The keys of FILE and what each may use."""
    from octavo.server.key_file import entries_of

    for name, entry in entries_of(file).items():
        print("\t".join([name, *(f"{field}={value}" for field, value in _said(entry).items())]))


@app.command(cls=QuickCommand)
def remove(file: _File, name: _Name) -> None:
    """Take a key out of FILE."""
    from octavo.server.key_file import remove_entry

    remove_entry(file, name)
    _hint(f"{name} is not in {file} any more")


def _add(file: Path, name: str, key: str, **fields: Any) -> None:
    from octavo.server.access import check_keys, digest_of
    from octavo.server.key_file import KeyEntry, add_entry

    check_keys([key])
    add_entry(file, name, KeyEntry(hash=f"sha256:{digest_of(key.encode()).hex()}", **fields))
    _hint(f"{name} is in {file}")


def _said(entry: KeyEntry) -> dict[str, Any]:
    """All but the hash."""
    import msgspec

    return {
        field: value
        for field, value in msgspec.to_builtins(entry).items()
        if value is not None and field != "hash"
    }


def _hint(done: str) -> None:
    print(f"{done}; a server that runs reads it again after kill -HUP.", file=sys.stderr)
