"""The verdict learns how far visits and machines differ, and a baseline holds several of them."""

from __future__ import annotations

import dataclasses
import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import case, launch, record

from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.judge.compare import learn
from pytest_trainbench.judge.noise import NO_SPREAD, Prior, Spread, compare, spread_of
from pytest_trainbench.judge.policy import Priors
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.judge.visits import MACHINE, PRESUMED, VISIT, between, grouped, spread
from pytest_trainbench.project.sources import overall
from pytest_trainbench.schema.record import Record, Saving, dump, read_record
from pytest_trainbench.store import baseline
from pytest_trainbench.store.history import Entry, Run, green_nights

CODE = {"my_steps.py": "1234"}


def visit(*step_ms: float, machine: str = "0000000a", **replaced: Any) -> Record:
    """A record of one visit."""
    environment = {"must_match": {"device": "NVIDIA H200"}, "suspects": {}, "machine": machine}
    return record(*map(launch, step_ms), **{"environment": environment, "code": CODE, **replaced})


def of_visits(*visits: Record) -> Record:
    """A baseline of several visits."""
    first, *others = visits
    for other in others:
        first = baseline.joined(first, other)
    return first


# A baseline of several visits


def test_a_baseline_of_two_visits_reads_back_with_both(tmp_path: Path) -> None:
    both = of_visits(visit(100.0, 101.0), visit(102.0, machine="0000000b", created="2026-02-03T04:05:06+00:00"))
    assert both.savings[1] == Saving(launches=1, machine="0000000b", created="2026-02-03T04:05:06+00:00")
    (tmp_path / "row.json").write_text(dump(both.to_json()))
    assert read_record(tmp_path / "row.json") == both
    assert [(one.machine, one.values("step_ms")) for one in both.visits] == [
        ("0000000a", [100.0, 101.0]),
        ("0000000b", [102.0]),
    ]


@pytest.mark.parametrize("launches", [(1,), (1, 3), (3, 0)])
def test_savings_that_do_not_add_up_to_the_launches_are_refused(launches: tuple[int, ...]) -> None:
    savings = tuple(Saving(launches=count, machine="", created="") for count in launches)
    with pytest.raises(ValueError, match=r"savings of .* do not add up to its 3 launches"):
        dataclasses.replace(visit(100.0, 100.0, 100.0), savings=savings)


def test_saving_the_same_code_again_keeps_both_visits(tmp_path: Path) -> None:
    first, second = visit(100.0, 100.0), visit(90.0, 90.0)
    for one in (first, second):
        (saved,) = baseline.merge(tmp_path, {one.case.id: one})
    assert (saved.record, saved.visits) == (second, 2)
    assert baseline.load(tmp_path, first.hardware, first.case) == of_visits(first, second)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"code": {"my_steps.py": "5678"}}, "the code of this row changed since"),
        (
            {"environment": {"must_match": {"device": "NVIDIA H200"}, "suspects": {"torch": "2.12"}, "machine": ""}},
            "torch was not known, is 2.12",
        ),
    ],
    ids=["code", "torch"],
)
def test_other_code_or_another_environment_replaces_the_launches(
    changed: dict[str, Any], why: str, tmp_path: Path
) -> None:
    old, new = visit(100.0), visit(90.0, **changed)
    baseline.merge(tmp_path, {old.case.id: old})
    with pytest.raises(ValueError, match=f"cannot be added to the stored launches: {why}; leave out --add to replace"):
        baseline.merge(tmp_path, {new.case.id: new}, add=True)
    baseline.merge(tmp_path, {new.case.id: new})
    assert baseline.load(tmp_path, new.hardware, new.case) == new


def test_a_file_that_does_not_know_its_code_is_replaced(tmp_path: Path) -> None:
    old, new = visit(100.0, code={}), visit(90.0)
    baseline.merge(tmp_path, {old.case.id: old})
    baseline.merge(tmp_path, {new.case.id: new})
    assert baseline.load(tmp_path, new.hardware, new.case) == new


def test_launches_of_a_disturbed_machine_are_replaced(tmp_path: Path) -> None:
    old, new = visit(100.0), visit(90.0)
    baseline.merge(tmp_path, {old.case.id: old})
    baseline.merge(tmp_path, {new.case.id: new}, disturbed={new.case.id})
    assert baseline.load(tmp_path, new.hardware, new.case) == new


def test_another_machine_with_another_driver_can_be_added(tmp_path: Path) -> None:
    def on(machine: str, driver: str) -> Record:
        facts = {"must_match": {"device": "NVIDIA H200"}, "suspects": {"driver": driver}, "machine": machine}
        return visit(100.0, environment=facts)

    old, new = on("0000000a", "580"), on("0000000b", "590")
    baseline.merge(tmp_path, {old.case.id: old})
    (saved,) = baseline.merge(tmp_path, {new.case.id: new}, add=True)
    assert saved.visits == 2


def test_a_baseline_keeps_its_latest_visits(tmp_path: Path) -> None:
    for number in range(baseline.VISITS_MOST + 2):
        one = visit(100.0 + number)
        baseline.merge(tmp_path, {one.case.id: one})
    stored = baseline.load(tmp_path, one.hardware, one.case)
    assert stored is not None and stored.values("step_ms")[0] == 102.0
    assert len(stored.visits) == baseline.VISITS_MOST


# What a comparison is between


def test_launches_are_compared_with_the_visits_of_their_own_machine_if_there_are_any() -> None:
    visits = [visit(100.0), visit(101.0, 101.5), visit(103.0, machine="0000000b"), visit(104.0, machine="")]
    assert between(visits, "0000000a") == VISIT
    assert grouped(visits, "step_ms", "0000000a") == [[100.0], [101.0, 101.5]]
    assert between(visits, "0000000c") == between(visits, "") == MACHINE
    assert grouped(visits, "step_ms", "0000000c") == [[100.0, 101.0, 101.5], [103.0], [104.0]]


def test_with_one_visit_the_spread_is_presumed() -> None:
    for key, presumed in PRESUMED.items():
        assert spread(*key, [[100.0, 101.0]], None, 0.01) == presumed


def test_the_visits_of_a_row_are_shrunk_towards_those_of_similar_rows() -> None:
    visits = [[99.0] * 3, [100.0] * 3, [101.0] * 3]
    alone = spread_of(visits, Prior(noise=0.002, prior_df=1e-9))
    assert alone.sd == pytest.approx(0.01, rel=0.01) and alone.df == pytest.approx(2)
    shrunk = spread_of(visits, Prior(noise=0.002, prior_df=8))
    assert shrunk.sd == pytest.approx(math.sqrt((8 * 0.002**2 + 2 * 0.01**2) / 10), rel=0.01) and shrunk.df == 10


def test_launches_that_differ_as_much_as_their_visits_show_no_spread() -> None:
    visits = [[98.0, 100.0, 102.0], [98.5, 100.0, 101.5]]
    assert spread_of(visits, Prior(noise=1e-4, prior_df=1)).sd < 1e-4


def test_each_visit_counts_by_its_variance() -> None:
    """A visit of a hundred launches says little more than one of two launches, if visits differ."""
    stored = [[100.0] * 99 + [100.1], [110.0, 110.1]]
    near = compare(stored, [105.0] * 3, spread=Spread(sd=0.1))
    assert near.before == pytest.approx(math.sqrt(100.0 * 110.0), rel=0.001)
    assert compare(stored, [105.0] * 3, spread=NO_SPREAD).before == pytest.approx(100.0, rel=0.01)


def test_freedom_is_that_of_the_larger_variance() -> None:
    """Satterthwaite's formula: a presumed spread has any number of degrees of freedom, and launches have their own."""
    quiet = [100.0, 100.1, 99.9, 100.05, 99.95]
    alone = compare([quiet], quiet).freedom
    assert compare([quiet], quiet, spread=Spread(sd=0.05)).freedom > 1000 * alone
    assert compare([quiet], quiet, spread=Spread(sd=0.05, df=3)).freedom == pytest.approx(3, rel=0.01)
    assert compare([quiet], quiet, spread=Spread(sd=1e-6, df=3)).freedom == pytest.approx(alone, rel=0.01)


# What the project teaches


def project(spread: float, *, machines: bool, rows: int = 20) -> list[Record]:
    """Baselines of three visits each that differ by ``spread``, and whose launches differ by a tenth of a per cent."""
    draw = np.random.default_rng(5)
    return [
        of_visits(
            *(
                visit(
                    *(100 * np.exp(draw.normal(0, spread) + draw.normal(0, 0.001, 3))).tolist(),
                    machine=f"0000000{number if machines else 0}",
                    of=case(row=row),
                )
                for number in range(3)
            )
        )
        for row in range(rows)
    ]


@pytest.mark.parametrize(("machines", "kind"), [(False, VISIT), (True, MACHINE)])
def test_baselines_of_several_visits_teach_how_far_visits_differ(machines: bool, kind: str) -> None:
    taught = learn(project(0.01, machines=machines)).visits
    assert taught["step_ms", False, kind].noise == pytest.approx(0.01, rel=0.3)
    assert learn([visit(100.0, 100.1)] * 20).visits == {}


@pytest.mark.parametrize("machines", [False, True])
def test_a_slowdown_that_visits_explain_is_not_red(machines: bool) -> None:
    """Three visits within 2 % of each other cannot tell a slowdown of 3 % from another visit."""
    rows = project(0.01, machines=machines)
    mean = float(np.mean(rows[0].values("step_ms")))
    now = visit(*[mean * 1.03] * 3, machine="0000000f" if machines else "00000000", of=rows[0].case)
    assert judge(now, rows[0], priors=learn(rows)).outcome != "regression"
    single = rows[0].visits[0]
    alone = visit(*[single.values("step_ms")[0] * 1.05] * 3, machine=single.machine, of=rows[0].case)
    assert judge(alone, single, priors=learn([one.visits[0] for one in rows])).outcome == "regression"


def test_green_nights_of_the_same_code_teach_it_too() -> None:
    rows = [visit(100.0, 100.1, 99.9, of=case(row=row)) for row in range(5)]
    draw = np.random.default_rng(6)

    def night(number: int, code: str, outcome: str) -> Run:
        entries = [
            Entry(
                id=row.case.id,
                label=row.label,
                outcome=outcome,
                baseline=row.created,
                launches=tuple({"step_ms": 100 * math.exp(by)} for by in [draw.normal(0, 0.01)] * 3),
                machine=row.machine,
                code=code,
            )
            for row in rows
        ]
        return Run(
            path=Path("run"),
            started=datetime(2026, 1, 1 + number, tzinfo=timezone.utc),
            hardware="h200",
            environment=Environment(must_match={}, suspects={}),
            entries={entry.id: entry for entry in entries},
        )

    same = [night(number, overall(CODE), "ok") for number in range(10)]
    others = [night(11, overall(CODE), "regression"), night(12, "other", "ok"), night(13, "", "ok")]
    nights = green_nights([*same, *others], rows)
    assert {len(entries) for entries in nights.values()} == {10}
    taught = learn(rows, "", nights)
    assert taught.visits["step_ms", False, VISIT].noise == pytest.approx(0.01, rel=0.4)
    slow = visit(*[102.0] * 3, of=rows[0].case)
    assert judge(slow, rows[0]).outcome == "regression"
    assert judge(slow, rows[0], priors=taught).outcome != "regression"
    assert isinstance(taught, Priors) and green_nights(same, [dataclasses.replace(rows[0], code={})]) == {}
