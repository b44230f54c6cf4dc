"""Nothing that is put into HTML can be more than text."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from octavo.charts.markup import json_in_script, tag
from tests.charts.reading import read

# A parser of HTML reads NUL and lone carriage returns as other characters.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=30) | st.sampled_from(
    ["</script>", "<!--", "]]>", "&amp;", "\"'><b onclick=x>", "</td></table>", "&#60;", "\u2028"]
)


@given(texts, texts)
def test_text_and_attributes_come_back_as_they_were(text: str, attribute: str) -> None:
    [made] = read(tag("p", text, title=attribute)).all("p")
    assert made.text == text and made.attributes == {"title": attribute}


def test_children_nest_and_none_is_nothing() -> None:
    made = tag(
        "ul", [tag("li", one) for one in ("a", "<b>")], None, class_="x", hidden=True, id=None, lang=False
    )
    assert made == '<ul class="x" hidden><li>a</li><li>&lt;b&gt;</li></ul>'
    assert tag("meta", name="a", http_equiv="b") == '<meta name="a" http-equiv="b">'


@given(st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8))
def test_json_in_a_script_is_the_same_value_and_does_not_end_it(value: object) -> None:
    put_in = json_in_script(json.dumps(value, ensure_ascii=False).encode())
    assert not set("<>&\u2028\u2029") & set(put_in)
    assert json.loads(put_in) == value
    assert json.loads(read(f"<script>{put_in}</script>").one("script").text) == value
