"""Baselines: a save replaces whole files of measured cases, keeps all others, and refuses failed records."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from samples import case, failed, launch, record

from pytest_trainbench.schema.record import Record, dump, read_record
from pytest_trainbench.store.baseline import Saved, count, load, merge, path_of

HW = "h200-sxm"
FIRST, SECOND = case(strategy="zero1"), case(strategy="zero2")


def save(folder: Path, *records: Record) -> list[Saved]:
    return merge(folder, {one.case.id: one for one in records})


def files(folder: Path) -> dict[str, str]:
    """Path -> text of every file in the folder, including hidden files."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_saved_baseline_is_loaded_by_hardware_and_case(tmp_path: Path) -> None:
    sample = record(of=FIRST)
    path = tmp_path / HW / f"{FIRST.slug}.json"
    assert save(tmp_path, sample) == [Saved(path=path, record=sample, replaced=None)]
    assert load(tmp_path, HW, FIRST) == sample
    assert load(tmp_path, HW, SECOND) is None
    assert load(tmp_path, "a100-sxm-80gb", FIRST) is None


def test_merging_replaces_measured_cases_and_leaves_other_files_unchanged(tmp_path: Path) -> None:
    old, kept, new = record(of=FIRST), record(of=SECOND), record(launch(90.0), of=FIRST)
    save(tmp_path, old, kept)
    before = files(tmp_path)
    (saved,) = save(tmp_path, new)
    after = files(tmp_path)
    assert saved == Saved(path=path_of(tmp_path, HW, FIRST), record=new, replaced=old)
    assert after == {**before, f"{HW}/{FIRST.slug}.json": dump(new.to_json())}


def test_an_interrupted_save_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, record(of=FIRST))
    before = files(tmp_path)

    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, record(launch(90.0), of=FIRST))
    assert files(tmp_path) == before


@pytest.mark.parametrize("outcome", ["invalid", "timeout", "crash"])
def test_a_failed_record_is_refused_before_anything_is_written(outcome: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        save(tmp_path, record(of=FIRST), record(launch(), failed(outcome, "because"), of=SECOND))
    assert str(error.value) == f"sharding[zero2-dp2] cannot become a baseline: it ended '{outcome}': because"
    assert files(tmp_path) == {}


def test_an_out_of_memory_in_some_launches_only_is_no_baseline(tmp_path: Path) -> None:
    """Every later run would pass against such a baseline: because it is out of memory too, or because it fits."""
    save(tmp_path, record(launch(100.0), of=FIRST))
    before = files(tmp_path)
    out = failed("oom", "because")
    for launches, what in (
        ([launch(90.0), launch(90.0), out], "memory ran out in launch 3, and 2 fitted"),
        ([out, launch(90.0)], "memory ran out in launch 1, and 1 fitted"),
        ([out], "memory ran out in one launch alone, and the baseline fitted"),
        ([out, failed("crash")], "memory ran out in one launch alone, and the baseline fitted"),
    ):
        cure = "make sure that nothing else uses the device's memory, and save it again"
        with pytest.raises(ValueError, match=f"{what}; {cure}: because$"):
            save(tmp_path, record(*launches, of=FIRST))
    assert files(tmp_path) == before
    save(tmp_path, record(out, out, of=FIRST))
    assert files(tmp_path) != before


def test_a_value_that_json_cannot_hold_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(tmp_path, record(of=FIRST), record(of=SECOND, environment={"power_cap_w": float("nan")}))
    assert files(tmp_path) == {}


def test_out_of_memory_is_a_result_and_is_stored(tmp_path: Path) -> None:
    sample = record(failed("oom"), of=FIRST)
    save(tmp_path, sample)
    assert load(tmp_path, HW, FIRST) == sample


def test_other_users_can_read_baselines(tmp_path: Path) -> None:
    (saved,) = save(tmp_path, record())
    assert saved.path.stat().st_mode & 0o777 == 0o644


def test_count_counts_complete_files_of_this_hardware(tmp_path: Path) -> None:
    assert count(tmp_path, HW) == 0
    save(tmp_path, record(of=FIRST), record(of=SECOND))
    save(tmp_path, record(of=FIRST, hardware="cpu"))
    (tmp_path / HW / ".half-written.tmp").write_text("")
    assert count(tmp_path, HW) == 2


# A stored file that cannot be used

CURE = "; --save-baseline writes a new one"


def spoil(folder: Path, text: str) -> Path:
    path = path_of(folder, HW, FIRST)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<<<<<<< HEAD\n", "cannot be read as a record: Expecting value: line 1 column 1 (char 0)"),
        ("{}", "cannot be read as a record: it has no 'schema'"),
        (dump(record(of=SECOND).to_json()), f"holds the case {SECOND.id!r}: the file was renamed or edited by hand"),
        (
            dump(record(failed("crash"), of=FIRST).to_json()),
            "cannot be a baseline: it ended 'crash': it ended crash",
        ),
    ],
    ids=["merge conflict", "empty", "another case", "a crash"],
)
def test_a_broken_file_is_reported_with_its_cure_and_saving_repairs_it(text: str, why: str, tmp_path: Path) -> None:
    path = spoil(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} {why}{CURE}')}$"):
        load(tmp_path, HW, FIRST)
    sample = record(of=FIRST)
    assert save(tmp_path, sample) == [Saved(path=path, record=sample, replaced=None)]
    assert load(tmp_path, HW, FIRST) == sample


# Two processes that save

SAVER = """
import sys, time
from pathlib import Path
from pytest_trainbench.store.baseline import merge
from samples import case, record, steps

name, folder = sys.argv[1], Path(sys.argv[2])
(folder / f"ready-{name}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for step_ms in range(1, 51):
    mine = record(*steps(float(step_ms)).launches, of=case(saver=name, number=step_ms), label=name)
    shared = record(*steps(float(step_ms)).launches, of=case(saver="both"), label=name)
    merge(folder / "baselines", {one.case.id: one for one in (mine, shared)})
"""


def test_two_processes_that_save_at_once_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVER]
    environment = {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
    savers = [subprocess.Popen([*command, name, str(tmp_path)], env=environment) for name in ("one", "two")]
    folder = tmp_path / "baselines"
    shared = case(saver="both")
    while any(saver.poll() is None for saver in savers):
        seen = load(folder, HW, shared)  # the file is absent or complete at any moment
        assert seen is None or seen.label in ("one", "two")
    assert [saver.returncode for saver in savers] == [0, 0]
    every = [case(saver=name, number=number) for name in ("one", "two") for number in range(1, 51)]
    assert {path.name for path in (folder / HW).iterdir()} == {f"{one.slug}.json" for one in [*every, shared]}
    assert all(load(folder, HW, one) is not None for one in every)
    assert read_record(path_of(folder, HW, shared)).values("step_ms") == [50.0]
