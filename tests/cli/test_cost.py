"""`octavo cost` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import run

COURSE = (
    "cost --turns-per-day 500000 --input 400 --output 150 --machine-month 2400 "
    "--hosted large:in=3,out=12 --hosted small:in=0.25,out=0.80"
)
TEAM = (
    "cost team --people 20 --questions 50 --input 1200 --output 300 --tpot 40ms --convention tokens --peak 3"
)


def test_the_worked_example_with_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{COURSE} --large-share 10% --worksheet".split()) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in (
        "large = 0.003 × 500000 turns × 30 days = 45000 USD a month",
        "against large = 2400 ÷ (30 days × (0.003 a turn)) = 26667 turns a day",
        "local + large = 2400 + 0.1 × 45000 = 6900 USD a month",
        "local beats small = 1 − 2400 ÷ 3300 = 27.27 % to large at most",
        "The cheapest is local",
    ):
        assert words in told


def test_json_has_the_numbers_and_the_worksheet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COURSE.split(), "--json", "--escalated", "0"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["per_month"] for one in told["hosted"]] == pytest.approx([45_000, 3_300])
    assert told["mixtures"][0]["per_month"] == 2400
    assert told["worksheet"][0]["title"] == "What is asked"


def test_a_team_and_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--memory 16GiB --reserved 2GB --model llama-3-8b --weights 16GB --weights 8.5GB --weights 5GB"
    assert run(f"{TEAM} {more} --hosted large:in=3,out=12".split()) == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in (
        "An answer takes 12 s; 3.333 busy hours a day, 13.9 % of the day, 41.7 % of 8 hours.",
        "1 at once: the wait never ends",
        "Weights of 16GB: nothing fits",
        "Weights of 8.5GB: about 25 requests fit",
        "Weights of 5GB: about 43 requests fit",
        "large: 7.20 USD a day",
    ):
        assert words in told
    assert run([*TEAM.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waits"]["1"] is None


def test_the_rent_of_known_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{COURSE.replace('--machine-month 2400', '--hardware l4')} --worksheet".split()) == 0
    assert "rent = 0.78 × 24 h × 30 days = 561.6 USD a month" in " ".join(capsys.readouterr().out.split())


def test_prices_are_listed_with_their_dates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["cost", "prices", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hosted"]["gpt-4.1"]["as_of"] and told["rents"]["h100"]["source"]
    assert run(["cost", "prices"]) == 0
    assert "gpt-4.1-mini" in capsys.readouterr().out


ONE = "cost --turns-per-day 5 --input 4 --output 1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cost --turns-per-day 5 --input 4 --output 1", "nothing to reckon with"),
        ("cost --turns-per-day 5 --input 4 --output 1 --hosted gpt-5-mni", "did you mean gpt-5-mini"),
        (
            "cost --turns-per-day 5 --input 4 --output 1 --hosted a:in=1,out=1 --cached 2",
            "cached input at a is not",
        ),
        ("cost --turns-per-day 5 --input 4 --output 1 --hardware mi300x", "the rent of 'mi300x' is unknown"),
        (
            "cost --turns-per-day 5 --input 4 --output 1 --rent 1 --electricity-price 0.3",
            "what the machine draws",
        ),
        (
            "cost --turns-per-day 5 --input 4 --output 1 --capacity 3 --hosted a:in=1,out=1",
            "machine costs is missing",
        ),
        ("cost --turns-per-day 5 --input 4 --output 1 --rent 1 --large-share 10%", "give one with --hosted"),
        (
            "cost --turns-per-day 5 --input 4 --output 1 --hosted a:in=1,out=1 --hosted a:in=1,out=1",
            "name twice",
        ),
        (f"{ONE} --rent 1e300", "--rent is 1e+300, and 1e+12 is the most"),
        (f"{ONE} --machine-month 1e308", "--machine-month is 1e+308"),
        (f"{ONE} --operations -1 --rent 1", "--operations is -1; it is a number of 0 or more"),
        (
            f"{ONE} --rent 1 --watts 5 --idle-watts 9 --electricity-price 1",
            "--idle-watts is 9 and --watts 5;",
        ),
        (f"{ONE} --rent 1 --electricity-price 0.2", "--electricity-price is given"),
        (f"{ONE} --purchase 5", "--purchase is given without years"),
        (f"{ONE} --purchase 5 --years 0", "--years is 0; a purchase is written off over a day"),
        (
            f"{ONE} --rent 1 --purchase 5 --years 3",
            "one of --machine-month, --rent and purchase; given is --rent and purchase.",
        ),
        (f"{ONE} --rent 1 --capacity 1e-300", "--capacity is 1e-300"),
        (f"{ONE} --hosted a:in=1e300,out=1", "'in=1e300' is not understood"),
        (
            f"{ONE} --hardware l4 --electricity-price 0.2",
            "has electricity in it; leave --electricity-price out",
        ),
        ("cost --turns-per-day 1e300 --input 4 --output 1 --rent 1", "--turns-per-day is 1e+300"),
        (
            "cost --turns-per-day 5 --input 1e308 --output 1 --rent 1",
            "--input is 1e+308 tokens, and 1e+09 is",
        ),
        (f"{TEAM} --memory 16GiB", "--memory and --model together"),
        (f"{TEAM} --at-once 0.5", "whole numbers"),
        (f"{TEAM} --memory 16GiB --model llama-3-8b --weights big", "is not a size"),
        ("cost team --people 2 --questions 5 --input 1 --output 3 --tpot 0", "takes no time"),
    ],
)
def test_what_cannot_be_reckoned_is_one_sentence(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and "Traceback" not in error
