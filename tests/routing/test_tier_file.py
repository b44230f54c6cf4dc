"""The file of tiers: what it says is taken, and each fault has its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import SettingsError
from octavo.routing.tier_file import read_tiers
from octavo.routing.tiers import Tiers

GOOD = """
[gateway]
default = "small"
deadline_s = 30

[tiers.small]
url = "http://127.0.0.1:8000"
model = "smollm2"
price = { input = 0, output = 0 }
context = 8192
abilities = ["tools", "json"]

[tiers.large]
url = "https://llm.example.org/api/v2"
model = "big"
key_variable = "LARGE_KEY"
price = { input = 1, cached = 0.1, output = 4 }
most_running = 8
local = true

[tiers.hosted]
url = "https://api.example.com/v1"
model = "huge"
price = "gpt-4.1"

[[rules]]
languages = ["ja", "zh"]
longer_than = 100
tier = "large"

[[rules]]
headers = { X-Team = "law" }
local_only = true
"""


def read(tmp_path: Path, text: str, **environment: str) -> Tiers:
    file = tmp_path / "tiers.toml"
    file.write_text(text)
    return read_tiers(file, environment)


def test_a_whole_file(tmp_path: Path) -> None:
    tiers = read(tmp_path, GOOD, LARGE_KEY="k")
    small, large, hosted = tiers.all
    assert tiers.names == ("small", "large", "hosted")
    assert (small.base.url, large.base.url) == ("http://127.0.0.1:8000/v1", "https://llm.example.org/api/v2")
    assert hosted.base.url == "https://api.example.com/v1"
    assert [tier.local for tier in tiers.all] == [True, True, False]
    assert (large.key, large.most_running, small.context) == ("k", 8, 8192)
    assert small.abilities == {"tools", "json"}
    assert hosted.price is not None and hosted.price.input == 2.0
    assert (tiers.general.default, tiers.general.embeddings, tiers.general.deadline_s) == (
        "small",
        "small",
        30,
    )
    assert [tier.name for tier in tiers.after("large")] == ["large", "hosted", "small"]
    assert tiers.rules[1].headers == {"x-team": "law"}


def test_fallbacks_have_their_own_fallbacks_behind_them(tmp_path: Path) -> None:
    text = GOOD.replace('model = "smollm2"', 'model = "smollm2"\nfallbacks = ["hosted"]')
    text = text.replace('model = "huge"', 'model = "huge"\nfallbacks = ["large"]')
    text = text.replace('model = "big"', 'model = "big"\nfallbacks = []')
    assert read(tmp_path, text, LARGE_KEY="k")["small"].fallbacks == ("hosted", "large")


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("[gateway]", "[gateway", "cannot be read as TOML"),
        ("[gateway]", "[getaway]", "the file has 'getaway', which nobody knows; did you mean gateway?"),
        ('default = "small"', 'default = "smal"', "default is 'smal', which is no tier; did you mean small?"),
        ("deadline_s = 30", "deadline_s = 0", "deadline_s is 0; it is at least 0.001"),
        ("deadline_s = 30", 'deadline_s = "x"', r"\[gateway\] deadline_s: Expected `float`, got `str`"),
        ("deadline_s = 30", 'embeddings = "x"', "embeddings is 'x', which is no tier; there are small"),
        ("context = 8192", "contxt = 8192", r"\[tiers.small\] has 'contxt', which nobody knows; did you mean context"),
        ("context = 8192", 'api_key = "sk-1"', "no place for secrets: name the environment's variable"),
        ("context = 8192", 'fallbacks = ["large", "hostd"]', "fallbacks has 'hostd', which is no tier; did you mean"),
        ("context = 8192", 'fallbacks = ["small"]', "fallbacks go in a circle: small → small"),
        ("context = 8192", "context = 0", "context: Expected `int` >= 1"),
        ('abilities = ["tools", "json"]', 'abilities = ["toolz"]', "'toolz', which nobody knows; did you mean tools"),
        ("{ input = 0, output = 0 }", "{ input = 0 }", r"\[tiers.small\] price has no output"),
        ("{ input = 0, output = 0 }", "{ input = 0, output = -1 }", "price.output: Expected `float` >= 0"),
        ("{ input = 0, output = 0 }", "{ in = 0, output = 1 }", "price has 'in', which nobody knows; there are input"),
        ("{ input = 0, output = 0 }", "{ input = 9, output = 9 }", "costs less than .* and stands behind it"),
        ('"gpt-4.1"', '"gpt-4.l"', "did you mean gpt-4.1"),
        ('default = "small"', 'currency = "EUR"', "is in USD, and .* currency is EUR"),
        ('price = "gpt-4.1"', "", "hosted.* has no price, and .* require_prices asks for one"),
        ("http://127.0.0.1:8000", "ftp://x", "begins with ftp://"),
        ("http://127.0.0.1:8000", "http://me:pw@x", "has a user or a password"),
        ("[tiers.small]", "[tiers.auto]", "'auto' is called as a model that lets the gateway decide"),
        ("[tiers.small]", '[tiers."a b"]', "a name with other characters"),
        ('tier = "large"', 'tier = "lrage"', r"\[\[rules\]\] number 1 tier: 'lrage' is not known; did you mean large"),
        ('languages = ["ja", "zh"]', 'languages = ["jp"]', "languages: 'jp' is not known; there are ar, de"),
        ('languages = ["ja", "zh"]', 'keys = ["law"]', "keys: 'law' is not known.*--api-key-file"),
        ("[[rules]]", '[decider]\npolcy = "x"\n[[rules]]', "'polcy', which nobody knows; did you mean policy"),
        ("[[rules]]", "[decider]\n[[rules]]", r"\[decider\].*missing required field `policy`"),
        (
            "[[rules]]",
            '[decider]\npolicy = "starting"\ntiers = { small = "smal" }\n[[rules]]',
            r"\[decider\] tiers has 'smal', which is no tier; did you mean small",
        ),
        (
            "[[rules]]",
            '[decider]\npolicy = "starting"\nthreshold = nan\n[[rules]]',
            r"\[decider\] threshold is nan; it must be a number",
        ),
        ("local_only = true", "", "number 2 says what it is for, and not what shall happen"),
        ('headers = { X-Team = "law" }', "", "number 2 has no condition"),
        ("LARGE_KEY", "OTHER_KEY", "takes its key from the environment's OTHER_KEY, which is not there"),
    ],
)  # fmt: skip
def test_faults(tmp_path: Path, before: str, after: str, sentence: str) -> None:
    assert before in GOOD
    text = GOOD.replace(before, after, 1)
    if "require_prices" in sentence:
        text = text.replace("deadline_s = 30", "require_prices = true")
    with pytest.raises(SettingsError, match=sentence) as caught:
        read(tmp_path, text, LARGE_KEY="k")
    assert str(caught.value).startswith(str(tmp_path))
    assert str(caught.value).endswith((".", "?"))


def test_a_longer_circle_is_shown_whole(tmp_path: Path) -> None:
    text = GOOD
    for model, other in (("smollm2", "large"), ("big", "hosted"), ("huge", "large")):
        text = text.replace(f'model = "{model}"', f'model = "{model}"\nfallbacks = ["{other}"]')
    with pytest.raises(SettingsError, match="fallbacks go in a circle: large → hosted → large"):
        read(tmp_path, text, LARGE_KEY="k")


@pytest.mark.parametrize("value", ["", "a b", "clé"])
def test_keys_that_no_header_carries(tmp_path: Path, value: str) -> None:
    with pytest.raises(SettingsError, match="LARGE_KEY"):
        read(tmp_path, GOOD, LARGE_KEY=value)


def test_no_tier_and_none_that_is_local(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no tier; add a table"):
        read(tmp_path, "[gateway]")
    text = '[gateway]\nlocal_only = true\n[tiers.a]\nurl = "https://x.example"\nmodel = "m"'
    with pytest.raises(SettingsError, match="local_only is asked for, and no tier is local"):
        read(tmp_path, text)
