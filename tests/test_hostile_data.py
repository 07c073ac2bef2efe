"""Stored files are data from anybody: reading one gives a record, or one sentence with the file's name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_project import replay, stored
from samples import case, launch, record

from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.resolve import HardwareNotFound, kind_of, resolve
from pytest_trainbench.judge.policy import Policy
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.schema import files
from pytest_trainbench.schema.record import Record, dump, read_record
from pytest_trainbench.store import baseline
from pytest_trainbench.store.dataframe import load_history
from pytest_trainbench.store.history import Entry, Log, read_run, read_runs

QUICK = settings(
    max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

ONE = record(launch(), launch(101.0), launch(102.0))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
"""Any JSON, and the numbers that Python writes and JSON does not have."""


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to each value in nested JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(found for key, one in inner for found in places(one, (*at, key)))]


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


def one_sentence(error: BaseException, path: Path) -> None:
    said = str(error)
    assert said.startswith(str(path)) and "\n" not in said and "Traceback" not in said, said
    assert len(said) < 1000


# Fuzzing. Each reader gives a value that can be used, or ValueError with one sentence.


@QUICK
@given(data=st.data())
def test_a_changed_record_is_read_or_refused_with_one_sentence(data: st.DataObject, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "h200-sxm" / "one.json"
    whole = json.loads(dump(ONE.to_json()))
    at = data.draw(st.sampled_from(places(whole)))
    changed = put(whole, at, data.draw(JSON))
    path.parent.mkdir()
    path.write_text(json.dumps(changed), encoding="utf-8", errors="surrogatepass")
    try:
        found = read_record(path)
    except ValueError as error:
        one_sentence(error, path)
        return
    usable(found, path.parent.parent)


def usable(found: Record, folder: Path) -> None:
    """What the plugin does with a baseline does not fail for one that it could read."""
    with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate; such a record is shown, not written
        dump(found.to_json()).encode()
    for one in baseline.load_all(folder, "h200-sxm"):
        judge(ONE, one, policy=Policy())


@QUICK
@given(text=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_refused_with_one_sentence(text: bytes, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "one.json"
    path.write_bytes(text)
    for read in (read_record, read_run):
        with pytest.raises(ValueError) as error:
            read(path)
        one_sentence(error.value, path)


def history_lines() -> list[Any]:
    head = {
        "schema": 1,
        "started": "2026-01-02T03:04:05+00:00",
        "project": "p",
        "hardware": "h200-sxm",
        "environment": ONE.environment,
    }
    entry = asdict(Entry.of(ONE, outcome="ok", baseline=ONE.created, fails=False))
    return [head, {"case": json.loads(json.dumps(entry))}, {"drift": ONE.case.id}, {"disowned": ONE.case.id}]


@QUICK
@given(data=st.data())
def test_a_changed_run_is_read_or_skipped_with_one_sentence(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    lines = history_lines()
    at = data.draw(st.sampled_from([place for place in places(lines) if place]))
    lines = put(lines, at, data.draw(JSON))
    path = folder / "20260102T030405Z-00000000.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    runs, problems = read_runs(folder)
    assert len(runs) + len(problems) == 1
    for problem in problems:
        one_sentence(ValueError(problem), path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(load_history(folder)) == sum(len(entry.launches) for run in runs for entry in run.entries.values())


@QUICK
@given(name=st.text(max_size=12) | st.sampled_from(["../../etc", "/etc", "cpu-../../etc", "..", "h200/../..", "\0"]))
def test_no_name_of_hardware_leads_out_of_the_baselines(name: str) -> None:
    with contextlib.suppress(HardwareNotFound):
        assert re.fullmatch("[a-z0-9-]+", resolve(name, find("cpu")).id)
    with contextlib.suppress(HardwareNotFound):
        assert re.fullmatch("[a-z]+", kind_of(name))


# What a stranger may put in the folder of baselines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "baselines"
    baseline.merge(made, {ONE.case.id: ONE})
    return made


def file_of(folder: Path) -> Path:
    return baseline.path_of(folder, ONE.hardware, ONE.case)


def linked(to: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(to)

    return link


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def outside(path: Path) -> None:
    there = path.parents[2] / "elsewhere.json"
    path.rename(there)
    path.symlink_to(there)


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (linked("/nowhere/at/all"), "it is a link to /nowhere/at/all, which does not exist"),
        (linked("/etc/passwd"), "it is a link that leads out of "),
        (linked("/dev/zero"), "it is a link that leads out of "),
        (outside, "it is a link that leads out of "),
        (pipe, "it is not a regular file"),
        (lambda path: path.write_text("[" * 100_000), "it is nested deeper than 50 levels"),
        (lambda path: path.write_text("[" * 60 + "]" * 60), "it is nested deeper than 50 levels"),
        (lambda path: path.write_text('{"schema": 2}'), "a newer version wrote it, so update pytest-trainbench"),
        (lambda path: path.write_text('{"schema": 0}'), "its format is 0, and this pytest-trainbench reads 1"),
        (lambda path: os.truncate(path, files.MOST_BYTES + 1), "it has more than 16,777,216 bytes"),
        (lambda path: path.write_text(path.read_text()[:-40]), "cannot be read as a record"),
        (
            lambda path: edit(path, ("launches", 0, "metrics", "step_ms"), "fast"),
            "must hold finite numbers, not 'fast'",
        ),
        (lambda path: edit(path, ("launches", 0, "metrics", "mfu"), 10**400), "must hold finite numbers"),
        (lambda path: edit(path, ("launches", 0, "pickle"), "x"), "a launch has the unknown field 'pickle'"),
        (lambda path: edit(path, ("label",), ["x"]), "label must be text"),
        (lambda path: edit(path, ("code",), {"../../secret.py": "0"}), "which is outside the project"),
    ],
)
def test_a_hostile_baseline_is_refused_with_one_sentence(folder: Path, plant: Callable[[Path], Any], why: str) -> None:
    path = file_of(folder)
    plant(path)
    with pytest.raises(ValueError) as error:
        baseline.load(folder, ONE.hardware, ONE.case)
    one_sentence(error.value, path)
    assert why in str(error.value) and str(error.value).endswith("; --save-baseline writes a new one")
    assert baseline.load_all(folder, ONE.hardware) == []


def edit(path: Path, at: tuple[Any, ...], new: Any) -> None:
    whole = json.loads(path.read_text())
    inner = whole
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = new
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ("samples_per_s", "cannot be read as a record: the metric samples_per_s must be above 0, not 0.0; "),
        ("peak_allocated_bytes", r"cannot be compared: its .* \(peak_allocated_bytes\) is 0, not above 0; "),
    ],
)
def test_a_stored_figure_of_0_names_its_file(folder: Path, metric: str, why: str) -> None:
    path = file_of(folder)
    edit(path, ("launches", 0, "metrics", metric), 0.0)
    with pytest.raises(ValueError, match=f"^{path} {why}"):
        baseline.load(folder, ONE.hardware, ONE.case)


def test_a_link_within_the_folder_is_followed(folder: Path) -> None:
    path = file_of(folder)
    path.rename(folder / "shared")
    path.symlink_to("../shared")
    assert baseline.load(folder, ONE.hardware, ONE.case) == ONE


def test_saving_replaces_a_link_and_leaves_its_target_alone(folder: Path, tmp_path: Path) -> None:
    path, target = file_of(folder), tmp_path / "target"
    target.write_text("mine")
    linked(str(target))(path)
    baseline.merge(folder, {ONE.case.id: ONE})
    assert (target.read_text(), path.is_symlink()) == ("mine", False)


def test_parameters_never_name_a_file_outside() -> None:
    for value in ("../../etc/passwd", "/etc/passwd", "a\0b", "x" * 5000, "..", "~root"):
        slug = case(strategy=value).slug
        assert "/" not in slug and "\0" not in slug and not slug.startswith(".") and len(slug) < 100


def test_one_bad_file_does_not_stop_the_history(tmp_path: Path) -> None:
    good = Log(
        tmp_path, project="p", hardware="cpu-x-2c", environment=ONE.environment, started=datetime.now(timezone.utc)
    )
    good.add(Entry.of(ONE, outcome="ok", baseline="", fails=False))
    beside = good.path.parent
    bad = {
        "deep": "[" * 100_000 + "\n",
        "empty": "",
        "zero": "".join(
            json.dumps(line) + "\n" for line in put(history_lines(), (1, "case", "launches", 0, "step_ms"), 0)
        ),
        "no-zone": json.dumps({**history_lines()[0], "started": "2026-01-02T03:04:05"}) + "\n",
        "newer": '{"schema": 2}\n',
    }
    for name, text in bad.items():
        (beside / f"{name}.jsonl").write_text(text)
    (beside / "dangling.jsonl").symlink_to("nowhere")
    (beside / "folder.jsonl").mkdir()
    with pytest.warns(UserWarning) as said:
        assert len(load_history(tmp_path)) == 3
    names = sorted(Path(str(one.message).split(" ")[0]).stem for one in said)
    assert names == sorted([*bad, "dangling", "folder"])


def test_a_hostile_baseline_fails_its_own_row_alone(replayed: pytest.Pytester) -> None:
    (path,) = stored(replayed)
    linked("/nowhere")(path)
    run = replay(replayed)
    run.stdout.fnmatch_lines(
        ["*invalid: mine: *it is a link to /nowhere, which does not exist; --save-baseline writes*"]
    )
    assert run.ret == 1
    assert replay(replayed, "--save-baseline").ret == 0
    assert not path.is_symlink() and replay(replayed).ret == 0


def test_a_baseline_cannot_command_the_terminal(replayed: pytest.Pytester) -> None:
    (path,) = stored(replayed)
    edit(path, ("environment", "suspects", "torch"), "\x1b[2J\r\n::error::owned")
    run = replay(replayed, step_ms=80.0)
    said = run.stdout.str()
    assert run.ret == 1 and "\\x1b[2J" in said and "\x1b[2J" not in said
    assert not any(line.lstrip().startswith("::") for line in said.splitlines())
