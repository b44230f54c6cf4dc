"""HTML that cannot be broken by what is put in: text is always escaped. Knows tags, no page."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Child", "Markup", "json_in_script", "tag"]

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Markup(str):
    """HTML that `tag` made. Any other `str` is text, and is escaped where it goes in."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. A trailing `_` of an attribute's name is cut, another `_` is `-`; None and False leave it out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    opened = f"<{' '.join(words)}>"
    if name in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{''.join(_flat(children))}</{name}>")


def json_in_script(data: bytes) -> Markup:
    """JSON for a `<script type="application/json">`: the same values, and nothing that could end the element."""
    text = data.decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str):
            yield html.escape(child)
        elif child is not None:
            yield from _flat(child)
