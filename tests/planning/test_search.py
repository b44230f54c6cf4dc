"""A search finds what trying everything finds, gives equal answers to equal questions, and says what is impossible."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.bench.slo import Slo
from octavo.bench.trial import Trial
from octavo.planning.choice import Choice
from octavo.planning.journal import Journal
from octavo.planning.plan import Plan, told
from octavo.planning.prices import Prices
from octavo.planning.search import Found, Search
from octavo.planning.space import Space
from octavo.planning.trying import Failing, Task, attempt
from octavo.planning.words import failing_words
from octavo.workload.arrivals import Poisson
from octavo.workload.generate import requests_of
from octavo.workload.lengths import Fixed, Lognormal, LognormalPart
from octavo.workload.spec import Workload
from octavo.workload.summary import summarize
from tests.planning.inline import Inline

ASKED = Workload(
    arrivals=Poisson(rate=6.0),
    input=Lognormal(parts=(LognormalPart(median=300, sigma=0.6),), max=2000),
    output=Fixed(tokens=60),
    requests=1000,
)
SLO = "ttft_p95<400ms,itl_p95<40ms"
SMALL = Space(
    model="llama-3-8b",
    hardware=("l4", "rtx4090", "a100-80"),
    weight_bits=(16, 8),
    tensor_parallel=(1,),
    policies=("stall-free",),
    budgets=(2048,),
    utilizations=(0.9,),
    prefix_caches=(True,),
    max_running=(256,),
    max_accelerators=8,
)


def searched(
    slo: str = SLO, space: Space = SMALL, workload: Workload = ASKED, journal: Path | None = None, **more: Any
) -> tuple[Found, Plan, Inline]:
    executor, bounds = Inline(), Slo.parse(slo)
    kept = Journal(journal, "test")
    summary = summarize(requests_of(msgspec.structs.replace(workload, requests=500)))
    search = Search(
        space,
        workload,
        summary,
        bounds,
        Prices(),
        executor,
        kept,
        requests=60,
        workers=1,
        **{"seeds": 2, **more},
    )
    found = search.run()
    kept.close()
    plan = told(
        found, bounds, model=space.model, workload="w", rate=workload.rate, request_rate=workload.rate, seed=0,
        calibration="uncalibrated",
    )  # fmt: skip
    return found, plan, executor


def cheapest_of_all(slo: str) -> tuple[float, str, float, int]:
    """Every base with every number of replicas, both seeds: the cheapest that meets the SLO."""
    bounds, prices, found = Slo.parse(slo), Prices(), []
    for name, bits in itertools.product(SMALL.hardware, SMALL.weight_bits):
        for replicas in range(1, 5):
            choice = Choice(deployment=SMALL.start(name, bits, 1), replicas=replicas)
            workload = msgspec.structs.replace(ASKED, requests=60 * replicas)
            outcomes = [
                attempt(Task(choice=choice, workload=workload, slo=slo, seed=seed)) for seed in range(2)
            ]
            if outcomes[0].unfit is None and Trial.of(bounds, 6.0, outcomes).decision == "met":
                found.append((choice.per_hour(prices), name, bits, replicas))
                break
    return min(found)


@pytest.mark.slow
def test_the_search_finds_what_trying_everything_finds() -> None:
    found, plan, _ = searched()
    assert found.best is not None and plan.best is not None
    cost, name, bits, replicas = cheapest_of_all(SLO)
    assert plan.best.per_hour == pytest.approx(cost)
    best = found.best.choice
    assert (best.deployment.hardware, best.deployment.weight_bits, best.replicas) == (name, bits, replicas)


@pytest.mark.slow
def test_the_plan_meets_the_slo_and_one_step_cheaper_does_not() -> None:
    found, plan, _ = searched(space=msgspec.structs.replace(SMALL, hardware=("l4",), weight_bits=(8,)))
    assert plan.best is not None and plan.cheaper is not None
    assert plan.best.met and not plan.cheaper.met
    assert plan.best.accelerators == plan.cheaper.accelerators + 1
    assert all(room is None or room >= 0 for room in plan.best.margins.values())
    assert plan.best.values["ttft_p95"] is not None and plan.best.values["ttft_p95"] < 0.4
    assert [one.rate for one in plan.curve][3] == 6.0 and plan.curve[0].met and not plan.curve[-1].met
    assert plan.binds is not None and plan.binds.kind in ("bandwidth", "compute")
    assert found.sensitivities == []  # each knob may be one thing only


def test_equal_questions_have_equal_answers_and_a_journal_spares_the_simulations(tmp_path: Path) -> None:
    space = msgspec.structs.replace(
        SMALL, hardware=("rtx4090",), weight_bits=(8,), policies=("stall-free", "continuous")
    )
    journal = tmp_path / "plan.jsonl"
    _, plan, first = searched(space=space, journal=journal)
    _, again, second = searched(space=space, journal=journal)
    assert first.asked and not second.asked
    assert again.taken_over > 0 and again.simulations == 0
    again.taken_over, again.simulations = plan.taken_over, plan.simulations
    assert msgspec.json.encode(plan) == msgspec.json.encode(again)
    assert [(row.knob, row.value) for row in plan.sensitivities] == [("policy", "continuous")]


def test_what_no_machine_can_do_alone_is_said_so() -> None:
    _, plan, executor = searched("itl_p99<1ms")
    assert plan.best is None and plan.infeasible_alone and not executor.asked
    assert sum(map(len, plan.left_out.values())) == 6
    _, plan, executor = searched("ttft_p50<5ms", space=msgspec.structs.replace(SMALL, hardware=("l4",)))
    assert plan.best is None and plan.infeasible_alone
    assert all(task.alone for task in executor.asked)


def test_too_much_for_the_machines_that_may_be_had_is_not_infeasible() -> None:
    space = msgspec.structs.replace(SMALL, hardware=("l4",), weight_bits=(8,), max_accelerators=1)
    _, plan, _ = searched("ttft_p95<400ms,itl_p95<40ms", space, ASKED.at_rate(40.0))
    assert plan.best is None and not plan.infeasible_alone
    assert list(plan.left_out) == ["More than 1 accelerators would be needed."]


def test_a_model_that_fits_nowhere_is_told_with_its_size() -> None:
    _, plan, _ = searched(
        space=msgspec.structs.replace(SMALL, model="llama-3-70b", hardware=("l4", "rtx4090"))
    )
    assert plan.best is None and not plan.infeasible_alone
    assert any("weights take 141" in reason for reason in plan.left_out)


@pytest.mark.slow
def test_what_costs_more_than_twice_the_best_is_not_simulated() -> None:
    space = msgspec.structs.replace(
        SMALL, hardware=("rtx4090", "b200"), weight_bits=(8,), tensor_parallel=(1, 2, 4, 8)
    )
    _, plan, executor = searched(space=space)
    names = {task.choice.deployment.hardware for task in executor.asked if not task.alone}
    assert "rtx4090" in names
    assert any("b200" in name for name in plan.left_out["Costs more than twice the best, at the least."])


@pytest.mark.slow
def test_guesses_are_a_knob_and_let_a_machine_keep_what_it_could_not() -> None:
    """A step of llama-3-8b takes an L4 some 70 ms: no answer has a token every 50 ms without guesses that are right."""
    space = msgspec.structs.replace(SMALL, hardware=("l4",), weight_bits=(16,), speculations=("off", "0.9"))
    workload = ASKED.at_rate(0.3)
    _, without, _ = searched("tpot_p95<50ms", msgspec.structs.replace(space, speculations=("off",)), workload)
    assert without.best is None and without.infeasible_alone
    found, plan, _ = searched("tpot_p95<50ms", space, workload)
    assert found.best is not None and found.best.choice.deployment.speculation == "0.9"
    assert plan.best is not None and plan.best.serve.endswith("--speculation auto")
    assert "Infeasible even for one request at a time" in " ".join(plan.left_out)
    drafted = msgspec.structs.replace(space, draft_model="llama-7b")
    assert drafted.start("l4", 16, 1, "0.9").draft_model == "llama-7b"
    assert drafted.start("l4", 16, 1, "off").draft_model is None


@pytest.mark.slow
def test_replicas_that_die_are_simulated_with_the_plan() -> None:
    space = msgspec.structs.replace(SMALL, hardware=("rtx4090",), weight_bits=(8,))
    sound, _, _ = searched("ttft_p95<400ms", space)
    failing = Failing(mtbf_s=20.0, repair_s=15.0)
    found, _, executor = searched("ttft_p95<400ms", space, failing=failing, seeds=1)
    assert all(task.failing == (None if task.alone else failing) for task in executor.asked)
    assert sound.best is not None and found.best is not None
    assert found.best.choice.replicas > sound.best.choice.replicas
    outcomes = found.best.trial.outcomes
    assert sum(one.failures for one in outcomes) > 0
    told = failing_words(found, failing)
    assert "A replica dies after 20 s in the mean" in told and "and it held" in told
    rare = failing_words(sound, Failing(mtbf_s=1e7, repair_s=60.0))
    assert "0 died" in rare and "rarer than runs are long" in rare
