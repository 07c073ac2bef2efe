"""The page of results shows every stored row and names every missing row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import MIB, case, failed, launch, record

from bench_tests.results import page as results
from bench_tests.results import stored as baselines
from bench_tests.results.page import page
from pytest_trainbench.listing import Listed
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store.other_code import Stale

ROOT = Path(__file__).parents[1]

FRESH = Stale(other={}, silent=frozenset(), labels={})


def stored(label: str, mesh: str, *step_ms: float) -> Record:
    metrics: dict[str, Any] = {
        "samples_per_s": 40.0,
        "compute_ms": 60.0,
        "host_ms": 95.0,
        "peak_allocated_bytes": 700 * MIB,
    }
    launches = [launch(ms, **metrics) for ms in step_ms]
    return record(*launches, label=label, of=case(mesh=mesh, model="other", strategy="ddp"))


def said(*arguments: str) -> str:
    """The output of a Python process of its own. A pytest inside this one would share its modules."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_page_shows_stored_rows_and_names_missing_rows() -> None:
    records = [
        stored("sharding[ddp-dp4]", "dp4", 100.0, 102.0, 98.0),
        record(failed("oom"), label="sharding[big-dp4]", of=case(mesh="dp4", model="other", strategy="big")),
    ]
    rows = {record.label: Listed(case=record.case.id) for record in records}
    missing = {
        "three_d[1f1b-tp4-pp4]": Listed(case="step() @ tp4-pp4"),
        "layer[bert-b2]": Listed(case="layer() @ dp1"),
        "layer[gpt2-b2]": Listed(),
        "layer[ort-b2]": Listed(skipped="it needs what is not installed"),
    }
    text = page("h200", records, {**rows, **missing}, FRESH)

    lines = [line for line in text.splitlines() if line.startswith("| sharding")]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines] == [
        ["sharding[big-dp4]", "4", "OOM", *[""] * 9],
        ["sharding[ddp-dp4]", "4", "40.0", "100.00", "60.00", "host", "700", "", "3", "2.0%", "0123abcd", ""],
    ]
    assert text.endswith(
        "No stored result uses more than 4 devices.\n\n"
        "- `layer`, 1 row (it needs what is not installed): ort-b2\n"
        "- `three_d`, 1 row (needs 16 devices): 1f1b-tp4-pp4\n"
        "- `layer`, 2 rows (not stored yet): bert-b2, gpt2-b2\n"
    )


def test_a_rank_that_drives_several_devices_counts_them_all() -> None:
    four = launch(samples_per_s=40.0, devices=4, peak_allocated_bytes=700 * MIB)
    one = record(four, of=case(builder="suite:other_step", mesh="dp1", model="x"), label="other[dp4]")
    text = page("h200", [one], {"other[dp8]": Listed()}, FRESH)
    assert "| other[dp4] |         4 |" in text
    assert "No stored result uses more than 4 devices." in text


def test_results_belong_to_cases_and_not_to_row_names() -> None:
    """A second row of a stored case shows its result. A row whose case has changed since shows none. If a row's case is
    unknown, because its library is not installed, the name decides."""
    one = stored("sharding[ddp-dp4]", "dp4", 100.0)
    old = record(launch(samples_per_s=1.0), label="other[old]", of=case(builder="suite:other", mesh="dp1", model="x"))
    unknown = record(launch(samples_per_s=1.0), label="other[unknown]", of=case(builder="suite:third", mesh="dp1"))
    text = page(
        "h200",
        [one, old, unknown],
        {
            "sharding[ddp-dp4]": Listed(case=one.case.id),
            "graph[eager-dp4]": Listed(case=one.case.id),
            "other[old]": Listed(case="other(model=y) @ dp1"),
            "other[unknown]": Listed(),
        },
        FRESH,
    )
    assert text.endswith(
        "## Rows that share a case\n\nEach case was measured once, under the second name.\n\n"
        "- `graph[eager-dp4]`: `sharding[ddp-dp4]`\n\n"
        "## Rows without a result\n\nThese rows run without `--grid`. No stored result uses more than 4 devices.\n\n"
        "- `other`, 1 row (not stored yet): old\n"
    )


def test_the_cases_of_a_device_are_listed_without_that_device() -> None:
    """Two suites with one configuration list one case, in the formats of that device, on any number of devices."""
    ask = """
import json
from pathlib import Path
from pytest_trainbench.listing import listed
print(json.dumps(listed([Path("bench_tests")], "h200", root=Path.cwd()), default=vars))
"""
    listed = json.loads(said("-c", ask))
    rows = {name: row["case"] for name, row in listed.items()}
    tf32 = "train_step(micro_batch=16, model=bert-base, precision=tf32, sequence=512, strategy=ddp-fp32) @ dp4"
    assert {rows["graph_optimisation[eager-512-dp4]"], rows["mixed_precision[tf32-dp4]"]} == {tf32}
    assert rows["sharding[ddp-dp4]"].endswith("precision=bf16, sequence=1024, strategy=ddp) @ dp4")
    assert rows["parallel_3d[torch-1f1b-tp4-pp4]"].endswith(" @ tp4-pp4")


def test_rows_of_other_code_are_marked_and_counted() -> None:
    """So are rows that do not name their code, because nobody knows whether the suite still measures the same."""
    records = [stored(f"sharding[{mesh}]", mesh, 100.0) for mesh in ("dp1", "dp2", "dp4")]
    _, other, silent = (record.case.id for record in records)
    code = Stale(other={other: ["bench_tests/steps/train.py"]}, silent=frozenset({silent}), labels={})
    text = page("h200", records, {}, code)
    assert (
        "Of these 3 results, 1 are of the suite's code as it is here, 1 are of other code (marked `*` in *Every row*),"
        " and 1 do not name their code (marked `?`)." in text
    )
    rows = [cells(line) for line in text.splitlines() if line.startswith("| sharding")]
    assert [row[-1] for row in rows] == ["", "*", "?"]


def test_a_page_with_all_rows_says_so() -> None:
    one = stored("sharding[ddp-dp4]", "dp4", 100.0)
    all_of_it = page("h200", [one], {one.label: Listed(case=one.case.id)}, FRESH)
    assert all_of_it.endswith("Every row that runs without `--grid` has a result.\n")


def test_baselines_are_found_by_family_and_by_kind_of_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / kind / "x.json" for kind in ("h200-nvl-141gb", "h200-sxm-141gb")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    monkeypatch.setattr(baselines, "FOLDER", tmp_path)
    nvl, sxm = ({file.parent.name: [file]} for file in files)
    assert [baselines.stored(name) for name in ("h200", "h200-sxm-141gb", "a100", "x")] == [{**nvl, **sxm}, sxm, {}, {}]


def test_two_kinds_of_one_family_are_refused_on_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("h200-sxm-141gb", "h200-nvl-141gb"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "x.json").touch()
    monkeypatch.setattr(baselines, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=r"several kinds of h200; name one of them: h200-sxm-141gb, h200-nvl-141gb"):
        results.main("h200")


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table, or four empty cells for any other line."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else [""] * 4
