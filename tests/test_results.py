"""The page of stored results: everything stored is on it, everything missing is named."""

from __future__ import annotations

from samples import MIB, case, failed, launch, record

from bench_tests.results import page
from pytest_trainbench.record import Record


def stored(label: str, mesh: str, *step_ms: float) -> Record:
    metrics = {"samples_per_s": 40.0, "compute_ms": 60.0, "host_ms": 95.0, "peak_allocated_bytes": 700 * MIB}
    launches = [launch(ms, **metrics) for ms in step_ms]
    return record(*launches, label=label, of=case(mesh=mesh, model="other", strategy="ddp"))


def test_the_page_has_what_is_stored_and_names_what_is_not() -> None:
    records = [
        stored("sharding[ddp-dp4]", "dp4", 100.0, 102.0, 98.0),
        record(failed("oom"), label="sharding[big-dp4]", of=case(mesh="dp4", model="other", strategy="big")),
    ]
    rows = ["sharding[ddp-dp4]", "sharding[big-dp4]", "three_d[1f1b-tp4-pp4]", "layer[bert-b2]", "layer[gpt2-b2]"]
    text = page("h200", records, rows)

    lines = [line for line in text.splitlines() if line.startswith("| sharding")]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines] == [
        ["sharding[big-dp4]", "4", "OOM", *[""] * 9],
        ["sharding[ddp-dp4]", "4", "40.0", "100.00", "60.00", "host", "700", "", "3", "2.0%", "0123abcd", ""],
    ]
    assert text.endswith(
        "No result is of more than 4 devices.\n\n"
        "- `three_d`, 1 rows, needs 16 devices: 1f1b-tp4-pp4\n"
        "- `layer`, 2 rows, not stored yet, or skipped for want of a device or package: bert-b2, gpt2-b2\n"
    )


def test_a_rank_that_drives_several_devices_counts_them_all() -> None:
    four = launch(samples_per_s=40.0, devices=4, peak_allocated_bytes=700 * MIB)
    one = record(four, of=case(builder="suite:other_step", mesh="dp1", model="x"), label="other[dp4]")
    text = page("h200", [one], ["other[dp8]"])
    assert "| other[dp4] |         4 |" in text
    assert "No result is of more than 4 devices." in text


def test_a_page_of_everything_says_so() -> None:
    one = stored("sharding[ddp-dp4]", "dp4", 100.0)
    assert page("h200", [one], [one.label]).endswith("Every row of the suite has a result.\n")
