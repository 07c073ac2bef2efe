"""The history: one file per run. No run is lost, and a history that cannot be written stops no run."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields, replace
from datetime import date, datetime, timezone
from pathlib import Path

import pandas as pd
import pytest
from samples import case, failed, launch, record

from pytest_trainbench import load_history
from pytest_trainbench.hardware.environment import Environment
from pytest_trainbench.store.history import ENTRY_FIELDS, Entry, Log, Run, launch_seconds, read_run, read_runs

ENVIRONMENT = Environment(
    must_match={"device": "NVIDIA H200"}, suspects={"torch": "2.13.0", "commit": "a1b2c3"}, machine="0123abcd"
)
NIGHT = datetime(2026, 10, 2, 2, 17, tzinfo=timezone.utc)

FIRST = Entry.of(
    record(launch(100.0, peak_allocated_bytes=7, host_ms=1.0), launch(101.0, peak_allocated_bytes=8)),
    outcome="ok",
    baseline="2026-01-02T03:04:05+00:00",
    fails=False,
)
SECOND = Entry.of(
    record(failed("crash"), of=case(mesh="dp4"), label="sharding[ddp-dp4]"), outcome="crash", baseline="", fails=True
)


def log(folder: Path, started: datetime = NIGHT) -> Log:
    return Log(folder, project="mine-0123abcd", hardware="h200", environment=ENVIRONMENT.to_json(), started=started)


def test_a_written_run_is_read_back_unchanged(tmp_path: Path) -> None:
    tonight = log(tmp_path)
    tonight.add(FIRST)
    tonight.add(SECOND)
    tonight.drifted(FIRST.id)
    assert tonight.path.parent == tmp_path / "mine-0123abcd" / "h200" and tonight.path.name.startswith(
        "20261002T021700Z-"
    )
    assert read_run(tonight.path) == Run(
        path=tonight.path,
        started=NIGHT,
        hardware="h200",
        environment=ENVIRONMENT,
        entries={FIRST.id: FIRST, SECOND.id: SECOND},
        project="mine-0123abcd",
        drifted=frozenset({FIRST.id}),
    )


def test_an_entry_has_one_digest_of_its_code_or_none_if_older(tmp_path: Path) -> None:
    one, other = (replace(record(launch()), code={"a.py": digest}) for digest in ("1", "2"))
    first, second = (Entry.of(each, outcome="ok", baseline="", fails=False) for each in (one, other))
    assert len(first.code) == len(second.code) == 12 and first.code != second.code
    tonight = log(tmp_path)
    tonight.add(first)
    tonight.path.write_text(tonight.path.read_text().replace(f', "code": "{first.code}"', ""))
    assert read_run(tonight.path).entries == {first.id: replace(first, code="")}


def test_a_case_whose_test_failed_after_measuring_becomes_invalid(tmp_path: Path) -> None:
    tonight = log(tmp_path)
    tonight.add(FIRST)
    tonight.disowned(FIRST.id)
    assert read_run(tonight.path).entries == {FIRST.id: replace(FIRST, outcome="invalid", fails=True)}


def test_only_metrics_with_a_gate_are_kept() -> None:
    assert FIRST.launches == (
        {"step_ms": 100.0, "peak_allocated_bytes": 7},
        {"step_ms": 101.0, "peak_allocated_bytes": 8},
    )
    assert FIRST.values("peak_allocated_bytes") == [7, 8] and FIRST.values("compute_ms") == []
    assert SECOND.launches == ({},)


def test_a_run_that_measured_nothing_writes_no_file(tmp_path: Path) -> None:
    log(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    one, other = log(tmp_path), log(tmp_path)
    one.add(FIRST)
    other.add(SECOND)
    one.add(SECOND)
    runs, problems = read_runs(tmp_path)
    assert sorted(len(run.entries) for run in runs) == [1, 2] and not problems


def test_a_run_killed_while_writing_keeps_its_complete_lines(tmp_path: Path) -> None:
    tonight = log(tmp_path)
    tonight.add(FIRST)
    tonight.add(SECOND)
    tonight.path.write_text(tonight.path.read_text()[:-20])
    assert list(read_run(tonight.path).entries) == [FIRST.id]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("{}\n", "it has no 'schema'"),
        ('{"schema": 7}\n', "its format is 7, and this pytest-trainbench reads 1"),
        ("not JSON\n", "Expecting value"),
    ],
)
def test_a_broken_file_is_reported_and_the_other_files_count(tmp_path: Path, text: str, why: str) -> None:
    log(tmp_path).add(FIRST)
    broken = tmp_path / "mine-0123abcd" / "h200" / "20261003T000000Z-broken.jsonl"
    broken.write_text(text)
    runs, (problem,) = read_runs(tmp_path)
    assert len(runs) == 1
    assert problem.startswith(f"{broken} cannot be read as a run: {why}") and "\n" not in problem


def test_runs_are_sorted_by_time_and_too_old_runs_are_left_out(tmp_path: Path) -> None:
    for day in (3, 1, 2):
        log(tmp_path, NIGHT.replace(day=day)).add(FIRST)
    runs, _ = read_runs(tmp_path, since=date(2026, 10, 2))
    assert [run.started.day for run in runs] == [2, 3]
    assert read_runs(tmp_path / "gone") == ([], [])


def test_a_folder_that_cannot_be_written_is_reported_once_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tonight = log(tmp_path / "file")
    tonight.add(FIRST)
    assert tonight.problem == (
        f"{tonight.path.parent} cannot be written (Not a directory); --history DIR names another folder"
    )
    tonight.add(SECOND)


def test_every_field_of_an_entry_can_be_read_back() -> None:
    """Otherwise no run of this version could be read."""
    assert list(ENTRY_FIELDS) == [field.name for field in fields(Entry)]


def test_the_last_runs_say_how_long_a_launch_takes(tmp_path: Path) -> None:
    for second, took_s in ((1, 9.0), (2, 6.0)):
        run = log(tmp_path, datetime(2026, 10, 3, 2, 17, second, tzinfo=timezone.utc))
        run.add(Entry.of(record(), outcome="ok", baseline="", fails=False, took_s=took_s))
    run.add(SECOND)
    (run.path.parent / "20261004T000000Z-broken.jsonl").write_text("{")
    assert launch_seconds(run.path.parent) == {"sharding[zero2-dp2]": 2.0}, "an older version wrote no time"
    assert launch_seconds(tmp_path / "gone") == {}


def test_the_history_loads_as_a_table_of_launches(tmp_path: Path) -> None:
    tonight = log(tmp_path)
    tonight.add(FIRST)
    tonight.add(SECOND)
    table = load_history(tmp_path)
    assert table.iloc[1].dropna().to_dict() == {
        "started": pd.Timestamp(NIGHT),
        "project": "mine-0123abcd",
        "hardware": "h200",
        "machine": "0123abcd",
        "id": "train_step(strategy=zero2) @ dp2",
        "label": "sharding[zero2-dp2]",
        "outcome": "ok",
        "baseline": "2026-01-02T03:04:05+00:00",
        "code": "",
        "launch": 1,
        "step_ms": 101.0,
        "peak_allocated_bytes": 8,
        "env.device": "NVIDIA H200",
        "env.torch": "2.13.0",
        "env.commit": "a1b2c3",
    }
    assert list(table["outcome"]) == ["ok", "ok", "crash"] and list(table["step_ms"].isna()) == [False, False, True]


def test_loading_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone does not exist; a run writes it"):
        load_history(tmp_path / "gone")


def test_a_broken_file_is_missing_from_the_table_and_a_warning_names_it(tmp_path: Path) -> None:
    log(tmp_path).add(FIRST)
    (tmp_path / "20261003T000000Z-broken.jsonl").write_text(json.dumps({"schema": 1}) + "\n")
    with pytest.warns(UserWarning, match="broken.jsonl cannot be read as a run: it has no 'started'"):
        assert len(load_history(tmp_path)) == 2


def older(tonight: Log) -> Path:
    """Rewrite a run as older versions wrote it, and move it to their folder."""
    head, *lines = tonight.path.read_text().splitlines(keepends=True)
    facts = json.loads(head)
    del facts["project"]
    old = tonight.path.parents[2] / "h200" / tonight.path.name
    old.parent.mkdir(exist_ok=True)
    old.write_text("".join([json.dumps(facts) + "\n", *lines]))
    tonight.path.unlink()
    return old


def test_runs_of_older_versions_load_without_a_project(tmp_path: Path) -> None:
    tonight = log(tmp_path)
    tonight.add(FIRST)
    older(tonight)
    assert load_history(tmp_path)["project"].tolist() == ["", ""]


def test_a_run_says_how_to_claim_the_runs_of_older_versions(tmp_path: Path) -> None:
    """They may belong to any project, so they count for this project only after the user typed the command."""
    before, tonight = log(tmp_path), log(tmp_path, NIGHT.replace(day=3))
    assert tonight.unclaimed() == []
    before.add(FIRST)
    old = older(before)
    (said,) = tonight.unclaimed()
    assert said.startswith(f"the runs in {old.parent} do not say their project, so they do not count; ")
    assert read_runs(tonight.path.parent) == ([], [])
    tonight.add(FIRST)
    subprocess.run(said[said.index("mv ") :], shell=True, check=True)
    assert len(read_runs(tonight.path.parent)[0]) == 2 and tonight.unclaimed() == []
