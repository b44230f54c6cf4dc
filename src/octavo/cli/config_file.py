"""Options from a file, as defaults for a command line. Knows options and file formats, not what an option means.

The values become click's `default_map`: the command line wins, then the environment, then the file, then the
command's own defaults.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import typer

from octavo.errors import SettingsError

__all__ = ["config_defaults"]

_PARSED = {
    "PORT": ("a whole number", (int,)),
    "SIZE": ('a text such as "2GiB", or a whole number of bytes', (str, int)),
    "TIME": ('a text such as "50ms", or 0', (str, int)),
}
"""What a file may give where the command line's text is read by a function of ours, by what its help calls it."""


def config_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of an eager option that names a file. Raises SettingsError, or OSError for an unreadable file."""
    if path is not None:
        context.default_map = _checked(context, path, _read(path))
    return path


def _read(path: Path) -> dict[str, Any]:
    """The file's keys and values."""
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": _read_toml,
        ".yaml": _read_yaml,
        ".yml": _read_yaml,
        ".json": _read_json,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        if not path.exists():
            raise SettingsError(f"{path} is not there; check the path.")
        raise SettingsError(f"{path}: a config file's name ends in {', '.join(readers)}; rename it.")
    try:
        values = reader(path.read_text(encoding="utf-8"))
    except ValueError as error:  # what is no UTF-8 among them
        reason = str(error).rstrip(".")
        raise SettingsError(f"{path} cannot be read as {path.suffix[1:].upper()}: {reason}.") from None
    if values is None:  # an empty YAML file
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"{path} holds {_shown(values)}; it must hold keys and values, such as port: 8000."
        )
    return values


def _read_toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _read_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_once(key for key, _ in pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


def _read_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise SettingsError(
            "A config file in YAML needs PyYAML: pip install 'octavo[yaml]', or write it as TOML."
        ) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            _check_once(str(key.value) for key, _ in node.value)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _check_once(keys: Iterable[str]) -> None:
    """JSON's and YAML's readers would take the last of two and say nothing."""
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"the key {key} is there twice")
        seen.add(key)


def _checked(context: typer.Context, path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """By the parameters' names, as the command line would have them."""
    known = {name: parameter for parameter in context.command.params for name in _names(parameter)}
    defaults: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, value in values.items():
        name = str(key).replace("_", "-")
        parameter = known.get(name)
        if parameter is None:
            raise SettingsError(
                f"{path}: {key!s:.60} is no option of {context.info_name}; {_hint(name, known)}"
            )
        assert parameter.name is not None
        if parameter.name in defaults:
            raise SettingsError(f"{path}: {key} says what {written[parameter.name]} says; leave one out.")
        given = _as_typed(path, str(key), value, parameter)
        try:
            parameter.process_value(context, given)
        except typer.BadParameter as error:
            raise SettingsError(f"{path}: {key} is {_shown(value)}: {error.message}") from None
        defaults[parameter.name], written[parameter.name] = given, str(key)
    return defaults


def _names(parameter: Any) -> list[str]:
    """How a file may call it: long options without their dashes, an argument's name. Not the file itself, nor help."""
    if parameter.name in ("config", "help"):
        return []
    return [name.removeprefix("--").replace("_", "-") for name in parameter.opts if len(name) > 2]


def _hint(name: str, known: Iterable[str]) -> str:
    if name == "config":
        return "a config file names no other; put all into one."
    if name.removeprefix("no-") in known:
        return f"write {name.removeprefix('no-')} with the value false."
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else "its --help has what there is."


def _as_typed(path: Path, key: str, value: Any, parameter: Any) -> Any:
    """As it would come from the command line, where numbers are texts too. Raises SettingsError for a wrong type."""
    kind, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    if parameter.multiple:
        given = [value] if isinstance(value, str) else value
        if isinstance(given, list) and all(isinstance(one, str) for one in given):
            return given
        expected = "a text or a list of texts"
    elif kind is bool:
        if isinstance(value, bool):
            return value
        expected = "true or false"
    elif info.parser is not None:
        expected, types = _PARSED[parameter.metavar]
        if type(value) in types:
            return str(value)
    elif kind in (int, float):
        if type(value) is int or (kind is float and type(value) is float):
            return str(value)
        expected = "a whole number" if kind is int else "a number"
    else:
        if isinstance(value, str):
            return value
        expected = f"one of {', '.join(map(str, get_args(kind)))}" if get_args(kind) else "a text"
    if value is None:
        raise SettingsError(f"{path}: {key} has no value; leave it out for the default.")
    unquoted = (
        isinstance(value, bool) and kind not in (int, float) and path.suffix.lower() in (".yaml", ".yml")
    )
    quotes = "; in YAML, off, on, yes and no as words need quotes" if unquoted else ""
    raise SettingsError(f"{path}: {key} is {_shown(value)}; it must be {expected}{quotes}.")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
