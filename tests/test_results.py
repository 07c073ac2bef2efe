"""The page of stored results: everything stored is on it, everything missing is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from samples import MIB, case, failed, launch, record

from bench_tests import baselines, results
from bench_tests.engines import ENGINES
from bench_tests.results import page
from bench_tests.tables.parallel_3d import parallel_3d
from pytest_trainbench.listing import Listed
from pytest_trainbench.schema.record import Record, read_record
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
    """By a Python of its own: pytest inside pytest would share its modules."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_page_has_what_is_stored_and_names_what_is_not() -> None:
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
        "No result is of more than 4 devices.\n\n"
        "- `layer`, 1 row (it needs what is not installed): ort-b2\n"
        "- `three_d`, 1 row (needs 16 devices): 1f1b-tp4-pp4\n"
        "- `layer`, 2 rows (not stored yet): bert-b2, gpt2-b2\n"
    )


def test_a_rank_that_drives_several_devices_counts_them_all() -> None:
    four = launch(samples_per_s=40.0, devices=4, peak_allocated_bytes=700 * MIB)
    one = record(four, of=case(builder="suite:other_step", mesh="dp1", model="x"), label="other[dp4]")
    text = page("h200", [one], {"other[dp8]": Listed()}, FRESH)
    assert "| other[dp4] |         4 |" in text
    assert "No result is of more than 4 devices." in text


def test_a_row_is_its_case_whatever_it_is_called() -> None:
    """A second name of a stored case has its result; a name whose case has changed since has none. Where the case of a
    row is not known, as where its library is not here, the name has to do."""
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
        "## Rows that are the case of another\n\nMeasured once, under the second name.\n\n"
        "- `graph[eager-dp4]`: `sharding[ddp-dp4]`\n\n"
        "## Rows without a result\n\nOf those that run without `--grid`. No result is of more than 4 devices.\n\n"
        "- `other`, 1 row (not stored yet): old\n"
    )


def test_cases_of_a_device_are_known_without_it() -> None:
    """Two suites that run one configuration are seen to, in the formats of that device and on any number of it."""
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


def test_the_page_in_the_docs_is_that_of_the_baselines() -> None:
    document = ROOT / "docs" / "results-h200.md"
    assert said("-m", "bench_tests.results", "h200") == document.read_text(encoding="utf-8"), (
        "it is stale: python -m bench_tests.results h200 > docs/results-h200.md"
    )


def test_a_row_of_other_code_is_marked_and_all_are_counted() -> None:
    """So are those that do not say: nobody knows whether the suite measures the same today."""
    records = [stored(f"sharding[{mesh}]", mesh, 100.0) for mesh in ("dp1", "dp2", "dp4")]
    _, other, silent = (record.case.id for record in records)
    code = Stale(other={other: ["bench_tests/training.py"]}, silent=frozenset({silent}), labels={})
    text = page("h200", records, {}, code)
    assert (
        "Of these 3 results, 1 are of the suite's code as it is here, 1 are of other code (marked `*` in *Every row*),"
        " and 1 do not say which code made them (marked `?`)." in text
    )
    rows = [cells(line) for line in text.splitlines() if line.startswith("| sharding")]
    assert [row[-1] for row in rows] == ["", "*", "?"]


def test_a_page_of_everything_says_so() -> None:
    one = stored("sharding[ddp-dp4]", "dp4", 100.0)
    all_of_it = page("h200", [one], {one.label: Listed(case=one.case.id)}, FRESH)
    assert all_of_it.endswith("Every row that runs without `--grid` has a result.\n")


def test_baselines_are_found_by_a_family_and_by_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / kind / "x.json" for kind in ("h200-nvl-141gb", "h200-sxm-141gb")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    monkeypatch.setattr(baselines, "FOLDER", tmp_path)
    nvl, sxm = ({file.parent.name: [file]} for file in files)
    assert [baselines.stored(name) for name in ("h200", "h200-sxm-141gb", "a100", "x")] == [{**nvl, **sxm}, sxm, {}, {}]


def test_two_kinds_of_one_family_are_not_put_on_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("h200-sxm-141gb", "h200-nvl-141gb"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "x.json").touch()
    monkeypatch.setattr(baselines, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=r"several kinds of h200, .*: h200-sxm-141gb, h200-nvl-141gb"):
        results.main("h200")


def test_the_table_of_the_readme_is_that_of_the_page() -> None:
    page = (ROOT / "docs" / "results-h200.md").read_text(encoding="utf-8")
    table = page.partition("## Sharding of a GPT")[2].split("\n\n")[1].splitlines()
    four = [line for line in table if cells(line)[3] in ("devices", "4")]
    shown = [cells(line) for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()]
    assert len(four) > 10
    assert all(cells(line) in shown for line in four), "it is stale: copy it from docs/results-h200.md"


def test_what_recording_gives_in_the_readme_is_from_the_page() -> None:
    page = (ROOT / "docs" / "results-h200.md").read_text(encoding="utf-8").splitlines()
    said = prose("README.md")
    rows = {cells(line)[0]: cells(line) for line in page}
    eager, recorded = rows["sharding[fsdp2-dp2]"], rows["sharding[fsdp2-recorded-dp2]"]
    assert f"FSDP2 gives {eager[2]} samples/s, with {float(eager[9].rstrip('%')):.0f} % between launches" in said
    assert f"and `fsdp2-recorded` {recorded[2]}, with {recorded[9].rstrip('%')} %" in said


def test_what_the_host_paces_in_the_readme_is_from_the_page() -> None:
    page = (ROOT / "docs" / "results-h200.md").read_text(encoding="utf-8").splitlines()
    said = prose("README.md")
    rows = {cells(line)[0]: cells(line) for line in page if line.startswith("| sharding[") and "-dp4]" in line}
    apart = {name.removeprefix("sharding[").removesuffix("-dp4]"): row[9].rstrip("%") for name, row in rows.items()}
    zero1 = rows["sharding[zero1-dp4]"]
    assert f"the device computes for {float(zero1[4]):.0f} of ZeRO-1's {float(zero1[3]):.0f} ms" in said
    paced = [apart.pop(name) for name in ("zero1", "fsdp2", "zero3")]
    assert "is {} % for ZeRO-1, {} % for FSDP2 and {} % for ZeRO-3".format(*paced) in said
    others = sorted(apart.values(), key=float)
    assert f"and {others[0]} to {others[-1]} % for the other rows" in said


@pytest.fixture(scope="module")
def h200() -> list[Record]:
    """What is stored."""
    return [read_record(path) for paths in baselines.stored("h200").values() for path in paths]


def test_what_tensor_parallelism_takes_the_host_is_from_the_baselines(h200: list[Record]) -> None:
    said = prose("docs/parallel-3d.md")
    found: dict[str, list[float]] = {"torch": [], "megatron": []}
    for one in h200:
        host, compute, step = map(one.median, ("host_ms", "compute_ms", "step_ms"))
        if one.case.mesh.tp > 1 and not ENGINES[one.case.params["engine"]].recorded and host and compute and step:
            found[one.case.params["engine"].removesuffix("-sp")].append(min(host, step) / compute)
    low, high = (round(end(found["torch"])) for end in (min, max))
    assert (low, high) == (9, 22) and "nine to twenty-two times as long" in said
    low, high = (round(end(found["megatron"])) for end in (min, max))
    assert (low, high) == (3, 7) and "three to seven times with Megatron-Core" in said


def test_what_pipelines_wait_for_is_from_the_baselines(h200: list[Record]) -> None:
    said = prose("docs/parallel-3d.md")
    table = parallel_3d(h200)
    assert table is not None
    simple = table[table["schedule"].isin(["GPipe", "1F1B"]) & table["engine"].str.startswith("PyTorch")]
    found = {tuple(row) for row in simple[["PP", "DP", "ideal bubble", "idle or waiting"]].to_numpy().tolist()}
    assert found == {("4", "1", "43%", "43%"), ("2", "2", "33%", "47%")}
    assert "show 43 % in both columns" in said and "they are 33 % and 47 %" in said
    (four,) = (one for one in h200 if one.label == "parallel_3d[torch-1f1b-pp4]")
    *others, last = four.launches[0].conditions["rank_compute_ms"]
    assert round(last / median(others), 1) == 1.3 and "a third longer than the others" in said


def test_what_zero_1_and_2_have_in_common_is_from_the_baselines(h200: list[Record]) -> None:
    assert "the same kernels, messages and memory" in prose("README.md")
    rows = {one.label: one for one in h200}
    one, two = rows["sharding[zero1-dp4]"], rows["sharding[zero2-dp4]"]
    for metric in ("kernels", "collectives", "collective_bytes"):
        assert one.median(metric) == two.median(metric) is not None
    peaks = (median(row.values("peak_allocated_bytes")) for row in (one, two))
    assert next(peaks) == pytest.approx(next(peaks), rel=1e-5)


def test_what_saturating_batches_give_a_device_to_do_is_from_the_baselines(h200: list[Record]) -> None:
    rows = [one for one in h200 if one.label.startswith("ddp_scaling[") and "-saturating-" in one.label]
    least = min(median(row.values("compute_ms")) / median(row.values("step_ms")) for row in rows)
    assert f"computes for {100 * least:.0f} % of a step or more" in prose("docs/ddp-scaling.md")


def test_what_recording_gives_tensor_parallelism_is_from_the_baselines(h200: list[Record]) -> None:
    said = prose("docs/parallel-3d.md")
    times = {one.label: one.values("step_ms") for one in h200 if one.case.mesh.tp > 1}
    recorded = {label: values for label, values in times.items() if "recorded" in label}
    gains = [median(times[label.replace("-recorded", "")]) / median(values) for label, values in recorded.items()]
    assert (round(min(gains)), round(max(gains))) == (6, 11) and "a sixth to an eleventh of the time there" in said
    apart = max(max(values) / min(values) - 1 for values in recorded.values())
    assert apart < 0.005 and "its launches are within 0.5 %" in said


def test_whose_launches_have_other_numbers_of_kernels_is_from_the_baselines(h200: list[Record]) -> None:
    differ = {one.label for one in h200 if len(set(one.values("kernels"))) > 1}
    evaluated = {f"trainer_eval[{precision}-8-dp4]" for precision in ("full", "fp16", "bf16")}
    in_threads = {f"trainer_data_parallel[{row}-8-dp2]" for row in ("train-full", "eval-full", "run-fp16")}
    assert differ == evaluated | in_threads
    said = prose("docs/measuring.md")
    assert "of only six differ. Three are Trainer's evaluation on four devices" in said
    passes = {"train-full": 4, "eval-full": 1, "run-fp16": 4}  # micro-batches of a step
    for row, count in passes.items():
        kernels = next(one.values("kernels") for one in h200 if one.label == f"trainer_data_parallel[{row}-8-dp2]")
        assert max(kernels) - min(kernels) == count
    assert "Three are `DataParallel`'s, where passes of some launches have a kernel fewer" in said


def test_how_far_scaling_leads_the_losses_away_is_from_the_baselines(h200: list[Record]) -> None:
    said = prose("docs/scaling.md")
    off = {label: f"{100 * median(one.values('loss_deviation')):.1g} %" for label, one in scaling(h200).items()}
    assert f"{off['weak-bert-large-dp1']} of the fall for BERT-Large on an H200" in said
    assert f"{off['weak-bert-1.5b-dp1']} for BERT-1.5B, whose" in said
    assert f"the losses of BERT-Large by {off['weak-bert-large-dp2']} of their fall" in said
    assert f"of BERT-1.5B by {off['weak-bert-1.5b-dp2']}." in said


def test_what_binds_scaling_to_the_host_is_from_the_baselines(h200: list[Record]) -> None:
    said = prose("docs/scaling.md")
    rows = scaling(h200)
    kernels, compute_ms = (median(rows["weak-bert-1.5b-dp1"].values(metric)) for metric in ("kernels", "compute_ms"))
    assert f"{round(kernels / 24, -2):,.0f} kernels of {1000 * compute_ms / kernels:.0f} µs each" in said
    above = {
        metric: max(100 * max(row.values(metric)) / median(row.values(metric)) - 100 for row in rows.values())
        for metric in ("step_ms", "compute_ms")
    }
    assert f"up to {above['step_ms']:.0f} % more than the middle one" in said
    assert f"judged beside the step, up to {above['compute_ms']:.1f} %." in said


def test_what_the_power_cap_takes_from_products_is_from_the_baselines(h200: list[Record]) -> None:
    said = prose("docs/layers.md")
    rows = {one.label: one for one in h200}

    def of_kernels(row: Record) -> float:
        flops, compute_ms = row.values("flops_per_step"), row.values("compute_ms")
        return median(work / ms / 1e9 for work, ms in zip(flops, compute_ms, strict=True))

    half, single = rows["matrix_product[bf16-4096]"], rows["matrix_product[fp32-4096]"]
    sm_mhz = median(one.conditions["sm_mhz"][0] for one in half.launches)
    assert f"products of 4096³ ran at {round(sm_mhz, -1):,.0f} of 1,980 MHz" in said
    assert all(one.conditions["sw_power_cap"] == [1.0] for one in half.launches), "at the cap throughout"
    assert f"at the cap throughout: {half.median('tflops_per_device'):.0f} TFLOPS" in said
    assert f"at {of_kernels(half):.0f} (`compute_ms`)" in said
    assert all(one.conditions["sm_mhz"] == [1980.0] for one in single.launches)
    alike = {f"{tflops:.1f}" for tflops in (single.median("tflops_per_device"), of_kernels(single))}
    assert len(alike) == 1 and f"at full clock throughout, give {alike.pop()} either way" in said


def scaling(records: list[Record]) -> dict[str, Record]:
    """The rows of ``test_scaling`` by what their labels have in brackets."""
    return {one.label[8:-1]: one for one in records if one.label.startswith("scaling[")}


def prose(name: str) -> str:
    """Of a page, its lines joined."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def cells(line: str) -> list[str]:
    """Of a line of a Markdown table, and four empty ones of any other."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else [""] * 4
