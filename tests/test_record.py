"""Stored records can be read back and give short diffs. One sentence says why a file cannot be used."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from samples import case, failed, launch, record, steps, trace

from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.metrics import METRICS, Statistical
from pytest_trainbench.schema.record import ABOVE_ZERO, Launch, Record, Trace, dump, read_record


def stored(folder: Path, of: Record) -> Path:
    path = folder / "record.json"
    path.write_text(dump(of.to_json()), encoding="utf-8")
    return path


def test_the_error_names_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / "mine.json"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"mine\.json cannot be read as a record: .*directory"):
        read_record(folder)


def test_a_trace_survives_json() -> None:
    sample = trace(losses=[None, 2.0], flops=None, tokens=None)
    assert Trace.from_json(json.loads(json.dumps(sample.to_json()))) == sample


@pytest.mark.parametrize(
    "sample",
    [
        record(launch(99.5, peak_allocated_bytes=123456789012, flops_per_step=12345678901234567)),
        record(launch(), failed("oom"), of=case(mesh="dp2-tp2", layers=24, betas=[0.9, 0.95])),
        record(failed("crash", "rank 1 was killed by SIGSEGV")),
        record(dataclasses.replace(launch(), collectives={"all_reduce": {"calls": 0.25, "bytes": 123456789012.0}})),
        record(launch(conditions={"sm_mhz": [1980.0, 1965.0], "other_cores": [0.125]})),
    ],
    ids=["ok", "oom", "crash", "collectives", "conditions"],
)
def test_a_stored_record_reads_back_unchanged(sample: Record, tmp_path: Path) -> None:
    assert read_record(stored(tmp_path, sample)) == sample


def test_a_record_from_before_conditions_were_stored_has_none(tmp_path: Path) -> None:
    path = stored(tmp_path, steps(100.0))
    data = json.loads(path.read_text())
    del data["launches"][0]["conditions"]
    path.write_text(json.dumps(data))
    assert read_record(path) == steps(100.0)


def test_a_record_from_before_code_was_stored_names_no_code(tmp_path: Path) -> None:
    path = stored(tmp_path, dataclasses.replace(steps(100.0), code={"a.py": "0123456789ab"}))
    assert read_record(path).code == {"a.py": "0123456789ab"}
    data = json.loads(path.read_text())
    del data["code"]
    path.write_text(json.dumps(data))
    assert read_record(path).code == {}


def test_storing_twice_changes_nothing(tmp_path: Path) -> None:
    once = stored(tmp_path, steps(100 / 3, 200 / 7, tokens_per_s=1e7 / 3)).read_text()
    assert dump(read_record(tmp_path / "record.json").to_json()) == once


def test_parameters_keep_all_their_digits(tmp_path: Path) -> None:
    """Parameters identify the case. Cut digits would name another case."""
    exact = Case(builder="a:b", mesh=MeshShape(dp=1), params={"lr": 1 / 3, "betas": [0.9, 0.9999999]})
    path = stored(tmp_path, dataclasses.replace(steps(100 / 3), case=exact))
    assert read_record(path).case == exact


def test_a_list_of_numbers_takes_one_line_and_other_values_one_each() -> None:
    data = {
        "schema": 1,
        "text": "[ 1,\n 2 ] ä",
        "step_ms": [1 / 3, 2.0, 3, None, True],
        "empty": [],
        "nested": [[1, 2], [3]],
        "names": ["a", "b"],
        "launches": [{"losses": (0.5,)}],
    }
    assert dump(data) == (
        '{\n  "schema": 1,\n  "text": "[ 1,\\n 2 ] ä",\n  "step_ms": [0.333333, 2.0, 3, null, true],\n'
        '  "empty": [],\n  "nested": [\n    [1, 2],\n    [3]\n  ],\n  "names": [\n    "a",\n    "b"\n  ],\n'
        '  "launches": [\n    {\n      "losses": [0.5]\n    }\n  ]\n}\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.891, "1234570.0"),
        (0.00012345678, "0.000123457"),
        (-28.6012345, "-28.6012"),
        (1234567890123.0, "1234567890123.0"),
        (1.5e300, "1.5e+300"),
        (98765432109876543, "98765432109876543"),
    ],
)
def test_fractions_are_cut_to_six_digits_and_whole_numbers_kept(value: float, text: str) -> None:
    assert dump({"x": value}) == f'{{\n  "x": {text}\n}}\n'


def test_one_more_launch_adds_lines_and_changes_none() -> None:
    before, after = dump(steps(100.0).to_json()), dump(steps(100.0, 101.0).to_json())
    kept = [line.rstrip(",") for line in after.splitlines()]
    assert all(line.rstrip(",") in kept for line in before.splitlines())


def edited(**replaced: Any) -> str:
    return json.dumps({**record().to_json(), **replaced})


def without(key: str) -> str:
    return json.dumps({name: value for name, value in record().to_json().items() if name != key})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "it has no 'schema'"),
        (without("launches"), "it has no 'launches'"),
        (
            edited(schema=2),
            "its format is 2, and this pytest-trainbench reads 1: a newer version wrote it,"
            " so update pytest-trainbench",
        ),
        (edited(schema=0), "its format is 0, and this pytest-trainbench reads 1"),
        (edited(schema="old"), "its format is 'old', and this pytest-trainbench reads 1"),
        (
            edited(id="another"),
            f"its id 'another' differs from the id of its case, {case().id!r}: the file was edited by hand",
        ),
        (edited(launches=[]), "a record of sharding[zero2-dp2] needs at least one launch"),
        (
            edited(launches=[{**dataclasses.asdict(launch()), "outcome": "fine"}]),
            "launch outcome 'fine' is unknown; known: ok, oom, invalid, timeout, crash",
        ),
        (
            edited(launches=[{"step_ms": [1.0], "metrics": {"mfu": math.nan}}]),
            "NaN is no number of JSON",
        ),
        (
            edited(launches=[{**dataclasses.asdict(launch()), "metrics": {"step_ms": 0.0}}]),
            "the metric step_ms must be above 0, not 0.0",
        ),
        (
            edited(launches=[{**dataclasses.asdict(launch()), "metrics": {"step_ms": 9.0, "samples_per_s": 0.0}}]),
            "the metric samples_per_s must be above 0, not 0.0",
        ),
        (edited(created="yesterday"), "Invalid isoformat string: 'yesterday'"),
        (edited(created="2026-01-02T03:04:05"), "its time, created='2026-01-02T03:04:05', has no time zone"),
        (edited(environment={}), "it has no 'must_match'"),
        (edited(environment={"must_match": 3}), "must_match of its environment must be an object, not 3"),
    ],
)
def test_the_error_says_in_one_sentence_why_a_file_is_not_a_record(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_record(path)
    assert str(error.value) == f"{path} cannot be read as a record: {why}"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        edited(case=[]),
        edited(case={**case().to_json(), "mesh": 2}),
        edited(case={**case().to_json(), "params": []}),
        edited(case={**case().to_json(), "more": 1}),
        edited(launches=[7]),
        edited(launches=[{**dataclasses.asdict(launch()), "metrics": []}]),
    ],
)
def test_the_error_names_a_json_file_of_another_shape(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json cannot be read as a record: "):
        read_record(path)


def test_the_error_names_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bad\.json cannot be read as a record: 'utf-8' codec"):
        read_record(path)


def test_every_metric_judged_by_its_noise_is_above_zero() -> None:
    assert set(ABOVE_ZERO) == {name for name, metric in METRICS.items() if isinstance(metric.gate, Statistical)}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("outcome", ["ok", "invalid"])
@pytest.mark.parametrize(
    "place",
    [
        lambda number: {"step_ms": [1.0, number]},
        lambda number: {"losses": [number]},
        lambda number: {"metrics": {"step_ms": number}},
        lambda number: {"phases_s": {"building": number}},
        lambda number: {"conditions": {"sm_mhz": [1980.0, number]}},
    ],
    ids=["step_ms", "losses", "metrics", "phases_s", "conditions"],
)
def test_a_launch_refuses_numbers_that_are_not_finite(place: Any, outcome: str, number: float) -> None:
    reason = None if outcome == "ok" else "why"
    with pytest.raises(ValueError, match="numbers of a launch must be finite, not"):
        Launch(**{"outcome": outcome, "reason": reason, "step_ms": [1.0], **place(number)})


@pytest.mark.parametrize("step_ms", [[], [1.0, 0.0], [-1.0]])
def test_an_ok_launch_has_step_times_above_zero(step_ms: list[float]) -> None:
    with pytest.raises(ValueError, match="an ok launch needs step times above 0, not"):
        Launch(step_ms=step_ms)


@pytest.mark.parametrize(("outcome", "reason"), [("ok", "but"), ("crash", None)])
def test_a_launch_has_a_reason_exactly_if_it_is_not_ok(outcome: str, reason: str | None) -> None:
    with pytest.raises(ValueError, match=f"its outcome is '{outcome}', its reason {reason!r}"):
        Launch(outcome=outcome, reason=reason, step_ms=[1.0])


def test_a_record_has_the_outcome_of_its_first_launch_that_is_not_ok() -> None:
    sample = record(launch(), failed("oom", "no room"), failed("crash"))
    assert (sample.outcome, sample.reason) == ("oom", "no room")
    assert (record().outcome, record().reason) == ("ok", None)


def test_values_come_from_the_launches_that_have_the_metric() -> None:
    assert record(launch(1.0, mfu=0.5), launch(2.0), failed("oom")).values("mfu") == [0.5]
    assert steps(1.0, 2.0).values("step_ms") == [1.0, 2.0]


def test_the_steady_window_begins_at_steady_from() -> None:
    assert Launch(step_ms=[3.0, 2.0, 1.0], steady_from=1).steady_ms == [2.0, 1.0]
