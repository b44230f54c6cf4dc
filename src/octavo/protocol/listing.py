"""OpenAI's lists with pages: what a request asks for, and the list that answers. Knows no kind of thing in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidParameter
from octavo.storage.records import Page

__all__ = ["list_query", "listed", "page_asked", "unknown_after"]


def page_asked(
    query: Mapping[str, str], *, default: int, most: int, orders: bool = True, others: Sequence[str] = ()
) -> Page:
    """The page that `query` asks for, the newest first by default. `orders`: it may ask for another order; `others`:
    parameters that are the caller's. Raises InvalidParameter."""
    names = ["limit", "after", *(["order"] if orders else []), *others]
    for name in query:
        if name not in names:
            raise InvalidParameter(
                f"{name[:60]} is no parameter of this list; there are {', '.join(names)}.", name[:60]
            )
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidParameter(f"limit is {text[:40]!r}; it must be a whole number in 1 … {most}.", "limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order is {order[:40]!r}; it is asc or desc.", "order")
    return Page(limit=int(text), after=query.get("after") or None, ascending=order == "asc")


def list_query(*, default: int, most: int, orders: bool = True) -> dict[str, dict[str, Any]]:
    """What `page_asked` takes, as JSON schemas."""
    query: dict[str, dict[str, Any]] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": most, "default": default},
        "after": {"type": "string", "description": "The id of the last one that is known already."},
    }
    if orders:
        query["order"] = {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
    return query


def unknown_after(page: Page) -> InvalidParameter:
    """The refusal of a page that begins after what is not there."""
    return InvalidParameter(f"after is {(page.after or '')[:60]!r}, which is not in this list.", "after")


def listed(objects: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """The list object around `objects`, each with an id."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": more,
    }
