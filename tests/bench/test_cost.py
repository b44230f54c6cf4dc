"""Money and energy against sums by hand; what is not known stays unknown."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.bench.cost import Bill, Cost, HostedPrice, Line, Work, figure, per_million, watts_drawn
from octavo.errors import InvalidParameter

WORK = Work(request_rate=2.0, input_rate=1500.0, output_rate=500.0, cached_share=0.4, busy_share=0.75)
MACHINE = Cost(
    price_per_hour=1.20, watts_busy=400.0, watts_idle=100.0, electricity_price_per_kwh=0.30, pue=1.25,
    documents_per_request=1.0,
)  # fmt: skip


def recomputed(line: Line) -> float:
    """The line's own text as arithmetic."""
    text = re.sub(r"[A-Za-z]+(/[A-Za-z]+)?", "", line.text)
    assert re.fullmatch(r"[\d.()+×÷−\s]+", text), text
    return float(eval(text.replace("×", "*").replace("÷", "/").replace("−", "-")))


def test_a_whole_bill_by_hand() -> None:
    bill = MACHINE.bill(WORK)
    watts = (100 + 0.75 * 300) * 1.25  # 406.25
    assert bill.watts == pytest.approx(watts)
    assert bill.electricity_per_hour == pytest.approx(watts / 1000 * 0.30)  # 0.121875
    assert bill.machine_per_hour == 1.20
    assert bill.per_hour == pytest.approx(1.321875)
    assert bill.per_million_output == pytest.approx(1.321875 / 1_800_000 * 1e6)
    assert bill.per_million_input == pytest.approx(1.321875 / 5_400_000 * 1e6)
    assert bill.per_million_total == pytest.approx(1.321875 / 7_200_000 * 1e6)
    assert bill.input_to_output == 3.0
    assert bill.per_request == pytest.approx(1.321875 / 7200)
    assert bill.per_document == pytest.approx(1.321875 / 7200)
    assert bill.documents_per_hour == 7200
    assert bill.documents_per_hour_per_price == pytest.approx(7200 / 1.321875)
    assert bill.joules_per_output_token == pytest.approx(watts / 500)
    assert bill.joules_per_request == pytest.approx(watts / 2)
    assert bill.kwh_per_million_output == pytest.approx(watts / 500 * 1e6 / 3.6e6)
    assert bill.busy_share == 0.75 and bill.notes == ()


def test_documents_may_be_parts_of_a_request_or_several_requests_or_so_many_tokens() -> None:
    several = dataclasses.replace(MACHINE, documents_per_request=3.0).bill(WORK)
    assert several.documents_per_hour == 21_600
    pieces = dataclasses.replace(MACHINE, documents_per_request=0.25).bill(WORK)
    assert pieces.documents_per_hour == 1800
    tokens = dataclasses.replace(MACHINE, documents_per_request=None, tokens_per_document=1000.0).bill(WORK)
    assert tokens.documents_per_hour == pytest.approx(5400)
    for bill in (several, pieces, tokens):
        assert bill.per_hour is not None and bill.documents_per_hour is not None
        assert bill.per_document == pytest.approx(bill.per_hour / bill.documents_per_hour)


def numbers(bill: Bill) -> dict[str, float]:
    return {
        field.name: value
        for field in dataclasses.fields(bill)
        if isinstance(value := getattr(bill, field.name), float)
    }


def test_what_is_not_known_is_none_and_in_no_line() -> None:
    nothing = Cost().bill(Work())
    assert numbers(nothing) == {} and nothing.lines == () and nothing.hosted == ()
    without_prices = Cost().bill(WORK)
    assert set(numbers(without_prices)) == {"input_to_output", "busy_share"}
    rent_alone = Cost(price_per_hour=1.0).bill(WORK)
    assert rent_alone.per_hour == 1.0 and rent_alone.watts is None and rent_alone.electricity_per_hour is None
    energy_alone = Cost(watts_busy=300.0, watts_idle=50.0).bill(WORK)
    assert energy_alone.per_hour is None and energy_alone.per_million_output is None
    assert energy_alone.joules_per_output_token == pytest.approx((50 + 0.75 * 250) / 500)
    idle = MACHINE.bill(Work(request_rate=0.0, input_rate=0.0, output_rate=0.0, busy_share=0.0))
    assert idle.per_million_output is None and idle.per_request is None and idle.documents_per_hour is None
    assert idle.watts == pytest.approx(125.0)


def test_documents_are_in_no_line_where_nobody_said_what_one_is() -> None:
    bill = dataclasses.replace(MACHINE, documents_per_request=None, hosted=[HOSTED]).bill(WORK)
    assert bill.documents_per_hour is bill.per_document is bill.documents_per_hour_per_price is None
    assert bill.hosted[0].per_document is None and bill.per_request is not None
    assert not [line for line in bill.lines if "document" in str(line)]


def test_a_price_with_a_discount_says_so() -> None:
    assert HOSTED.terms == ", 50 % off for batches"
    assert HostedPrice.parse("a:in=1,out=2").terms == ""


def test_a_machine_that_is_owned_may_cost_nothing_and_that_is_not_unknown() -> None:
    assert Cost(price_per_hour=0.0).bill(WORK).per_million_output == 0.0


@pytest.mark.parametrize(
    ("cost", "work", "watts", "note"),
    [
        (Cost(watts_busy=400.0), WORK, 400.0, "watts_idle is not known"),
        (Cost(watts_busy=400.0, watts_idle=90.0, pue=1.5), Work(output_rate=1.0), 600.0, "busy share"),
        (Cost(electricity_price_per_kwh=0.3), WORK, None, "watts_busy is not known"),
    ],
)
def test_what_is_assumed_is_said(cost: Cost, work: Work, watts: float | None, note: str) -> None:
    bill = cost.bill(work)
    assert bill.watts == watts
    assert [note in one for one in bill.notes] == [True]


HOSTED = HostedPrice.parse("somewhere:in=2.5,out=10,cached=0.25,batch=50%")


def test_the_same_requests_at_a_hosted_api_by_hand() -> None:
    bill = dataclasses.replace(MACHINE, hosted=[HOSTED]).bill(WORK)
    [hosted] = bill.hosted
    per_second = (900 * 2.5 + 600 * 0.25 + 500 * 10) / 1e6 * 0.5
    assert hosted.per_hour == pytest.approx(per_second * 3600)
    assert hosted.per_request == pytest.approx(per_second / 2)
    assert hosted.per_document == pytest.approx(per_second / 2)
    assert hosted.per_million_blended == pytest.approx(per_second / 2000 * 1e6)
    assert hosted.break_even_requests_per_hour == pytest.approx(1.321875 / (per_second / 2))


def test_without_a_cached_price_or_share_all_input_has_the_full_price() -> None:
    plain = HostedPrice(name="plain", input=2.5, output=10.0)
    assert Cost(hosted=[plain]).bill(WORK).hosted[0].per_hour == pytest.approx((1500 * 2.5 + 5000) * 0.0036)
    cached = HostedPrice(name="cached", input=2.5, output=10.0, cached=0.25)
    bill = Cost(hosted=[cached]).bill(dataclasses.replace(WORK, cached_share=None))
    assert bill.hosted[0].per_hour == pytest.approx((1500 * 2.5 + 5000) * 0.0036)
    assert "cached share is not known" in bill.notes[0]
    assert bill.hosted[0].break_even_requests_per_hour is None
    assert Cost(hosted=[cached]).bill(Work(request_rate=1.0)).hosted == ()


@settings(deadline=None)
@given(
    st.builds(
        Work,
        request_rate=st.none() | st.floats(0.01, 1e3),
        input_rate=st.none() | st.floats(0.01, 1e6),
        output_rate=st.none() | st.floats(0.01, 1e6),
        cached_share=st.none() | st.floats(0.0, 1.0),
        busy_share=st.none() | st.floats(0.0, 1.0),
    ),
    st.floats(0.0, 100.0),
    st.floats(1.0, 2.0),
)
def test_every_line_of_a_sum_can_be_computed_again_from_its_text(
    work: Work, price: float, pue: float
) -> None:
    cost = dataclasses.replace(MACHINE, price_per_hour=price, pue=pue, hosted=[HOSTED])
    bill = cost.bill(work)
    for line in (*bill.lines, *(line for one in bill.hosted for line in one.lines)):
        assert recomputed(line) == pytest.approx(line.value, rel=5e-3, abs=1e-12), str(line)
        assert str(line).endswith(f" = {figure(line.value)} {line.unit}")


def test_the_worksheet_reads_as_a_person_would_write_it() -> None:
    assert [str(line) for line in MACHINE.bill(WORK).lines][:4] == [
        "power = (100 W + 0.75 × (400 W − 100 W)) × 1.25 = 406.2 W",
        "electricity = 406.2 W ÷ 1000 × 0.3 = 0.1219 USD an hour",
        "cost = 1.2 + 0.1219 = 1.322 USD an hour",
        "documents = 2 requests/s × 3600 × 1 = 7200 an hour",
    ]


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"price_per_hour": -1.0}, "price_per_hour is -1"),
        ({"watts_busy": float("nan")}, "watts_busy is nan"),
        ({"electricity_price_per_kwh": float("inf")}, "electricity_price_per_kwh is inf"),
        ({"pue": 0.9}, "pue is 0.9"),
        ({"watts_idle": 100.0}, "watts_busy not given"),
        ({"watts_idle": 100.0, "watts_busy": 90.0}, "as many at least"),
        ({"documents_per_request": 0.0}, "documents_per_request is 0"),
        ({"tokens_per_document": -2.0}, "tokens_per_document is -2"),
        ({"documents_per_request": 1.0, "tokens_per_document": 2.0}, "leave one out"),
        ({"hosted": [HOSTED], "currency": "EUR"}, "hosted somewhere is in USD and the machine in EUR"),
    ],
)
def test_prices_that_cannot_be_are_refused(given_: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidParameter, match=re.escape(said)):
        Cost(**given_)  # type: ignore[arg-type]


def test_a_hosted_price_is_read_with_its_currency() -> None:
    found = HostedPrice.parse("a:b: in=1 , out=.5", "EUR")
    assert found == HostedPrice(name="a:b", input=1.0, output=0.5, currency="EUR")
    assert HOSTED.batch_discount == 0.5 and HOSTED.cached == 0.25


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("in=1,out=2", "'in=1' is not understood"),
        (":in=1,out=2", "'in=1' is not understood"),
        ("a:in=1", "out is missing"),
        ("a:in=1,out=2,in=3", "in is there twice"),
        ("a:in=1,out=2,batch=0.5", "'batch=0.5' is not understood"),
        ("a:in=1%,out=2", "'in=1%' is not understood"),
        ("a:in=-1,out=2", "'in=-1' is not understood"),
        ("a:in=1,out=2,batch=100%", "below 100 %"),
    ],
)
def test_a_wrong_hosted_price_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InvalidParameter, match=re.escape(said)):
        HostedPrice.parse(text)


def test_the_small_functions_for_plans() -> None:
    assert watts_drawn(0.0, 300.0, 100.0) == 100.0 and watts_drawn(1.0, 300.0, 100.0, 1.2) == 360.0
    assert per_million(3.6, 1000.0) == pytest.approx(1.0)
    assert [figure(value) for value in (0.0, 0.00012345, 1.5, 12345.6, 1e6)] == [
        "0", "0.0001234", "1.5", "12346", "1000000",
    ]  # fmt: skip
