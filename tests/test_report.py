"""The texts that people read: the table, the report of a red test, the saved baselines. Tests compare whole texts."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pandas as pd
import pytest
from samples import MIB, failed, launch, metric, record, steps

from pytest_trainbench.judge.compare import GENERATED
from pytest_trainbench.judge.middle import both_judged
from pytest_trainbench.judge.outcome import Change, Verdict
from pytest_trainbench.judge.policy import Policy
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.report import markdown, terminal
from pytest_trainbench.report.rows import Row, ms, table
from pytest_trainbench.schema.record import Record
from pytest_trainbench.store.baseline import Saved


def measured(ms: float, **metrics: float) -> Record:
    """Three launches of a case, with figures as on an H200."""
    usual = {
        "samples_per_s": 4000 / ms,
        "peak_allocated_bytes": 11193 * MIB,
        "process_bytes": 15000 * MIB,
        "tflops_per_device": 41200 / ms,
        "mfu": 41.2 / ms,
        "flops_per_step": 14901161193847,
    }
    return steps(ms, ms, ms, **{**usual, **metrics})


BASELINE = measured(100.0)
SUSPECTS = (("torch", "2.11.0", "2.13.0"), ("ecc", None, True))


def row(now: Record, then: Record | None = BASELINE, *, label: str, **replaced: Any) -> Row:
    """The judged row of a test that ran."""
    verdict = judge(now, then, suspects=SUSPECTS)
    now, then = both_judged(verdict, now, then)
    usual = {"label": label, "verdict": verdict, "record": now, "baseline": then, "fails": verdict.fails(ci=False)}
    return Row(**{**usual, **replaced})


def skipped(label: str) -> Row:
    return Row(label=label, verdict=Verdict(outcome="skipped", reason="needs 8 devices, has 4"))


OK = row(measured(100.4), label="sharding[ddp-dp4]")
REGRESSION = row(
    measured(108.3, peak_allocated_bytes=11300 * MIB),
    label="sharding[zero2-dp4]",
    baseline_path=Path("baselines/h200-sxm/train_step-zero2-dp4-0badcafe.json"),
    accept="pytest 'test_sharding.py::test_sharding[zero2-dp4]' --hw h200 --save-baseline",
    by_hand="torchrun --nproc-per-node 4 -m pytest_trainbench.rank.worker job.json",
)
NEW = row(measured(50.0), None, label="sharding[new-dp4]")
NEWER = row(measured(55.0), None, label="sharding[newer-dp4]")
OOM = row(record(failed("oom", "rank 0 failed while building the step: no room")), None, label="sharding[big-dp4]")
CRASH = row(
    record(launch(), failed("crash", "rank 1 was killed by SIGSEGV while timing 20 steps")),
    None,
    label="sharding[bad-dp4]",
    detail="Traceback:\n\n  line 1",
)
EVERY = [OK, REGRESSION, NEW, NEWER, OOM, skipped("sharding[wide-dp8]"), CRASH]


def text(expected: str) -> str:
    return dedent(expected).strip("\n")


# The summary


def test_the_summary_is_one_aligned_table_with_each_reason_once() -> None:
    assert terminal.summary(EVERY) == text("""
        case                   samples/s    step ms    peak MiB    TFLOPS    MFU    launches    change    sees  outcome
        -------------------  -----------  ---------  ----------  --------  -----  ----------  --------  ------  -----------
        sharding[ddp-dp4]          39.84     100.40      11,193       410  41.0%           3     −0.4%   ≥1.7%  ok
        sharding[zero2-dp4]        36.93     108.30      11,300       380  38.0%           3     −8.3%   ≥1.7%  regression
        sharding[new-dp4]          80.00      50.00      11,193       824  82.4%           3                    no-baseline
        sharding[newer-dp4]        72.73      55.00      11,193       749  74.9%           3                    no-baseline
        sharding[big-dp4]                                                                  1                    oom
        sharding[wide-dp8]                                                                                      skipped
        sharding[bad-dp4]                    100.00                                        2                    crash

        no-baseline: 2 rows: there is no baseline for this case on this hardware; --save-baseline stores one
        oom: sharding[big-dp4]: rank 0 failed while building the step: no room; there is no baseline for this case on this hardware; --save-baseline stores one
        skipped: sharding[wide-dp8]: needs 8 devices, has 4
        """)  # noqa: E501


def test_on_a_cpu_the_table_shows_process_memory_and_small_figures() -> None:
    metrics = {"samples_per_s": 1234.567, "process_bytes": 512 * MIB, "tflops_per_device": 0.01234}
    now = steps(100.0, 101.0, 100.5, **metrics)
    assert terminal.summary([row(now, now, label="sharding[ddp-dp2]")]) == text("""
        case                 samples/s    step ms    process MiB    TFLOPS    launches    change    sees  outcome
        -----------------  -----------  ---------  -------------  --------  ----------  --------  ------  ---------
        sharding[ddp-dp2]     1,234.57     100.50            512    0.0123           3      0.0%   ≥5.0%  ok
        """)


@pytest.mark.parametrize(
    ("value", "said"), [(0.0123, "0.0123"), (0.5, "0.500"), (0.0, "0.00"), (9.876, "9.88"), (1234.5, "1,234.50")]
)
def test_milliseconds_below_one_keep_three_digits(value: float, said: str) -> None:
    assert ms(value) == said
    now = steps(*[value or 1.0] * 3)
    assert table([row(now, None, label="a")])["step ms"] == [ms(value or 1.0)]


def test_rows_of_one_case_each_show_their_own_launches() -> None:
    fast, slow = row(measured(50.0), None, label="first"), row(measured(70.0), None, label="second")
    assert fast.record is not None and slow.record is not None
    assert fast.record.case.id == slow.record.case.id
    assert table([fast, slow])["step ms"] == ["50.00", "70.00"]


def test_the_table_shows_the_judged_figure() -> None:
    """The failure report below the table shows the same figure."""
    uneven = steps(100.0, 101.0, 104.0)
    judged = row(uneven, steps(*[100.0] * 5), label="a")
    step = judged.verdict.change("step_ms")
    assert step is not None and f"{step.now:,.2f}" != "101.00"
    assert table([judged])["step ms"] == [f"{step.now:,.2f}"]
    assert table([row(uneven, None, label="a")])["step ms"] == ["101.00"]


def test_a_table_of_skipped_rows_has_no_figures() -> None:
    assert terminal.summary([skipped("a"), skipped("b")]) == text("""
        case    outcome
        ------  ---------
        a       skipped
        b       skipped

        skipped: 2 rows: needs 8 devices, has 4
        """)


def test_notes_explain_neither_failures_nor_ok_rows() -> None:
    assert terminal.notes([OK, REGRESSION, CRASH]) == []


def test_one_reason_under_two_outcomes_makes_two_notes() -> None:
    other = dataclasses.replace(NEW, verdict=Verdict(outcome="oom", reason=NEW.verdict.reason))
    assert len(terminal.notes([NEW, other])) == 2


def test_outcomes_are_counted_in_the_order_from_good_to_bad() -> None:
    assert terminal.counts(EVERY) == "1 ok, 2 no-baseline, 1 oom, 1 skipped, 1 regression, 1 crash"
    assert terminal.counts([]) == ""


def test_stale_baselines_are_grouped_by_reason() -> None:
    old = [dataclasses.replace(OK, label=label, stale="it is more than 90 days old") for label in ("a", "b")]
    beaten = dataclasses.replace(OK, label="c", stale="it is beaten")
    assert terminal.notes([*old, beaten]) == [
        "renew the baseline of a, b: it is more than 90 days old; --save-baseline stores a new one",
        "renew the baseline of c: it is beaten; --save-baseline stores a new one",
    ]


# One red test


def test_a_red_report_shows_the_change_the_baseline_and_the_next_command() -> None:
    assert terminal.failure(REGRESSION) == text("""
        regression: sharding[zero2-dp4]: step time 8.3% worse (sees ≥ 1.7%); peak allocated memory 1.0% worse (sees ≥ 0.5%)
          judged    step time: 100 → 108.3 ms, 8.3% worse (sees ≥ 1.7%; 95 % sure: −9.0% … −7.6%): regression
                    samples/s: 40 → 36.9344 1/s, 7.7% worse (sees ≥ 2.3%; 95 % sure: −8.3% … −7.1%): regression
                    peak allocated memory: 11,193 → 11,300 MiB, 1.0% worse (sees ≥ 0.5%): regression
                    the same: FLOPs
          baseline  baselines/h200-sxm/train_step-zero2-dp4-0badcafe.json, saved 2026-01-02T03:04:05+00:00
          launches  3 against 3
          differs   torch: 2.11.0 → 2.13.0
                    ecc: not known → True
          accept    pytest 'test_sharding.py::test_sharding[zero2-dp4]' --hw h200 --save-baseline
          by hand   torchrun --nproc-per-node 4 -m pytest_trainbench.rank.worker job.json
        """)  # noqa: E501


def communicating(**kinds: tuple[int, int]) -> Record:
    """Launches with calls and bytes of each kind of collective."""
    each = {kind: {"calls": float(calls), "bytes": float(size)} for kind, (calls, size) in kinds.items()}
    calls, size = (sum(kind[figure] for kind in each.values()) for figure in ("calls", "bytes"))
    one = measured(100.0, collectives=calls, collective_bytes=size)
    return dataclasses.replace(
        one, launches=tuple(dataclasses.replace(launch, collectives=each) for launch in one.launches)
    )


def test_the_report_names_one_more_collective_and_the_unchanged_step_time() -> None:
    before = communicating(all_reduce=(4, 20_971_520), broadcast=(2, 1024))
    red = row(communicating(all_reduce=(6, 20_971_528), broadcast=(2, 1024)), before, label="a", accept="pytest")
    assert terminal.failure(red) == text("""
        regression: a: collectives a step, all ranks: 6 → 8; bytes into collectives a step, all ranks: 20,972,544 → 20,972,552; the step time did not change (sees ≥ 1.7%)
          judged    step time: 100 → 100 ms, unchanged (sees ≥ 1.7%; 95 % sure: −0.7% … +0.7%): ok
                    samples/s: 40 → 40 1/s, unchanged (sees ≥ 2.3%; 95 % sure: −0.7% … +0.7%): ok
                    collectives a step, all ranks: 6 → 8, 2 more: regression
                    bytes into collectives a step, all ranks: 20,972,544 → 20,972,552 B, 8 more: regression
                    peak allocated memory: 11,193 → 11,193 MiB, unchanged (sees ≥ 0.5%): ok
                    the same: FLOPs
          launches  3 against 3
          parts     all_reduce: 4 → 6 a step, 20,971,520 → 20,971,528 B
          differs   torch: 2.11.0 → 2.13.0
                    ecc: not known → True
          accept    pytest
        """)  # noqa: E501


def test_a_metric_without_enough_launches_is_in_doubt_and_not_ok() -> None:
    now, before = measured(185.0, kernels=12.0), measured(100.0, kernels=10.0)
    verdict = judge(now, before, policy=Policy(first=3, last=10))
    red = row(now, before, label="a", verdict=verdict)
    (line,) = (line for line in terminal.failure(red).splitlines() if "step time: " in line)
    assert line.endswith(": in doubt")


def test_unrounded_fractions_of_collectives_compare_as_equal() -> None:
    """With ``--against``, the other side was never stored. One collective in three steps keeps all its digits there."""
    one = measured(100.0, collectives=1 / 3)
    third = {"all_reduce": {"calls": 1 / 3, "bytes": 4.0}}
    side = dataclasses.replace(
        one, launches=tuple(dataclasses.replace(launch, collectives=third) for launch in one.launches)
    )
    assert "all_reduce" not in terminal.failure(row(side, side, label="a"))


def test_a_baseline_without_collective_counts_reports_none() -> None:
    slower = dataclasses.replace(communicating(all_reduce=(4, 8)), launches=measured(120.0).launches)
    assert "all_reduce" not in terminal.failure(row(slower, measured(100.0), label="a"))
    now = communicating(all_reduce=(4, 8))
    assert row(now, measured(100.0), label="a").verdict.outcome == "ok"


def test_counts_that_vary_between_launches_are_noted_once_for_all_rows() -> None:
    before = steps(100.0, 100.0, 100.0, kernels=10)
    now = record(*(launch(kernels=kernels) for kernels in (9, 10, 11)))
    assert terminal.notes([row(now, before, label=label) for label in ("a", "b")]) == [
        "not judged: kernels a step, not the same in every launch: a, b"
    ]


def test_odd_launches_are_in_the_notes_or_in_the_red_row() -> None:
    before = steps(100.0, 100.0, 100.0, kernels=10)
    green = row(record(*(launch(kernels=kernels) for kernels in (10, 11, 10))), before, label="a")
    said = "1 of 3 launches counted 11 instead of 10"
    assert terminal.notes([green]) == [f"odd launch: a: kernels a step: {said}"]
    red = row(record(*(launch(130.0, kernels=kernels) for kernels in (10, 11, 10))), before, label="a", fails=True)
    assert terminal.notes([red]) == []
    assert f"            kernels a step: 10 → 10, unchanged: ok; {said}\n" in terminal.failure(red)


def test_kernel_counts_of_compiled_steps_are_noted_for_each_row() -> None:
    before, now = (steps(*[100.0] * 3, kernels=kernels, graph_breaks=0) for kernels in (1066, 1067))
    assert terminal.notes([row(now, before, label="compiled")]) == [
        f"not judged: kernels a step, {GENERATED}: compiled (1,066 → 1,067)"
    ]


def test_a_red_row_of_against_names_the_other_side_and_the_command() -> None:
    sides = dataclasses.replace(
        REGRESSION,
        baseline_path=None,
        against="HEAD~1 (0123456789ab)",
        again="pytest 'test_sharding.py::test_sharding[zero2-dp4]' --against=HEAD~1",
        accept="",
    )
    lines = terminal.failure(sides).splitlines()
    assert lines[5] == "  against   HEAD~1 (0123456789ab), measured in turns with this side"
    assert lines[6] == "  launches  3 against 3"
    assert lines[9:11] == [
        "  again     pytest 'test_sharding.py::test_sharding[zero2-dp4]' --against=HEAD~1",
        "  accept    nothing to store: after the merge, runs are compared with the merged code",
    ]


@pytest.mark.parametrize(
    ("flops", "now", "moved"),
    [(14901161193848, "14,901,161,193,848", "under 0.01% more"), (13411045074462, "13,411,045,074,462", "10.0% less")],
)
def test_a_change_in_flops_is_incomparable_and_neither_better_nor_worse(flops: int, now: str, moved: str) -> None:
    other = row(measured(100.0, flops_per_step=flops), label="a", accept="pytest --save-baseline")
    assert terminal.failure(other) == text(f"""
        incomparable: a: FLOPs: 14,901,161,193,847, now {now}: the step does other work than the baseline's
          judged    step time: 100 → 100 ms, unchanged (sees ≥ 1.7%; 95 % sure: −0.7% … +0.7%): ok
                    samples/s: 40 → 40 1/s, unchanged (sees ≥ 2.3%; 95 % sure: −0.7% … +0.7%): ok
                    peak allocated memory: 11,193 → 11,193 MiB, unchanged (sees ≥ 0.5%): ok
                    FLOPs: 14,901,161,193,847 → {now} FLOP, {moved}: incomparable
          launches  3 against 3
          differs   torch: 2.11.0 → 2.13.0
                    ecc: not known → True
          accept    pytest --save-baseline
        """)


def test_a_crash_report_has_the_reason_and_the_log() -> None:
    assert terminal.failure(CRASH) == text("""
        crash: sharding[bad-dp4]: rank 1 was killed by SIGSEGV while timing 20 steps

            Traceback:

              line 1
        """)


def under(ms: float, **conditions: float) -> Record:
    """Launches on two devices, the second one under these conditions."""
    known = {name: [normal, conditions.get(name, normal)] for name, normal in (("sm_mhz", 1980.0), ("hw_thermal", 0.0))}
    return record(*[launch(ms, conditions=known)] * 3)


def test_a_report_that_blames_the_machine_offers_no_accept_command() -> None:
    found = row(under(130.0, sm_mhz=1410.0, hw_thermal=0.63), under(100.0), label="sharding[zero2-dp4]")
    assert terminal.failure(found) == text("""
        environment: sharding[zero2-dp4]: step time 30.0% worse (sees ≥ 1.5%); the machine first; the code is not excluded: SM clock 1,410 MHz on device 1, baseline 1,980 MHz, and thermal slowdown by the hardware in 63% of the window on device 1, baseline 0%
          judged    step time: 100 → 130 ms, 30.0% worse (sees ≥ 1.5%; 95 % sure: −30.9% … −29.2%): environment
          launches  3 against 3
          machine   SM clock 1,410 MHz on device 1, baseline 1,980 MHz
                    thermal slowdown by the hardware in 63% of the window on device 1, baseline 0%
          differs   torch: 2.11.0 → 2.13.0
                    ecc: not known → True
          then      first check the machine, then run this again; do not save a new baseline
          code      --against=COMMIT compares two commits on this machine as it is
        """)  # noqa: E501


def machine(now: Record, then: Record, **replaced: Any) -> list[str]:
    lines = terminal.failure(row(now, then, label="a", **replaced)).splitlines()
    return [line for line in lines if line.startswith("  machine")]


def test_a_red_report_says_whether_the_machine_matched_the_baseline() -> None:
    assert machine(under(130.0), under(100.0)) == ["  machine   no recorded condition is worse than for the baseline"]
    told = record(*[launch(130.0, conditions={"sm_mhz": [1980.0, 1980.0], "host_rate": [12.0]})] * 3)
    said = "no recorded condition is worse than for the baseline\n            not recorded with the baseline: host_rate"
    assert f"  machine   {said}" in terminal.failure(row(told, under(100.0), label="a"))
    assert machine(under(300.0, sm_mhz=1410.0), under(100.0)) == [
        "  machine   SM clock 1,410 MHz on device 1, baseline 1,980 MHz"
    ]
    assert machine(under(130.0), steps(100.0, 100.0, 100.0)) == [], "a baseline that does not say"
    assert machine(under(130.0), under(100.0), against="main") == [], "sides that took turns are not held against it"


def test_without_a_comparison_the_report_does_not_mention_the_machine() -> None:
    now, then = under(100.0), under(100.0)
    capped = (("power_cap_w", 700, 500),)
    rows = [
        Row(label="a", verdict=judge(now, then, must_match=capped), record=now, baseline=then),
        row(record(*now.launches, failed("oom")), then, label="a"),
    ]
    assert [one.verdict.outcome for one in rows] == ["incomparable", "regression"]
    assert [one for one in rows if "  machine" in terminal.failure(one)] == []


def test_notes_name_passed_rows_on_a_machine_unlike_the_baselines() -> None:
    rows = [row(under(100.0, hw_thermal=share), under(100.0), label=f"thermal {share}") for share in (0.0, 0.4, 0.5)]
    assert terminal.notes(rows) == [
        "the machine was in a worse state than for the baseline: thermal 0.4, thermal 0.5: for example"
        " thermal slowdown by the hardware in 40% of the window on device 1, baseline 0%"
    ]


def suspects(*listed: tuple[str, str, str]) -> list[str]:
    verdict = dataclasses.replace(REGRESSION.verdict, suspects=listed)
    lines = terminal.failure(dataclasses.replace(REGRESSION, verdict=verdict)).splitlines()
    return lines[lines.index("  launches  3 against 3") + 1 : -2]


def own_code(then: dict[str, str], now: dict[str, str], **replaced: Any) -> list[str]:
    """The lines of a red row on the project's code."""
    red, before = (dataclasses.replace(one, code=code) for one, code in ((measured(120.0), now), (BASELINE, then)))
    said = terminal.failure(row(red, before, label="a", **replaced)).splitlines()
    return [line.removeprefix("  your code ") for line in said if line.startswith("  your code")]


def test_a_red_row_names_the_changed_files_of_its_step() -> None:
    then = {"a.py": "1", "b.py": "2", "gone.py": "3"}
    assert own_code(then, {"a.py": "1", "b.py": "9", "new.py": "4"}) == [
        "3 of 4 files that this step imports differ from the baseline's: b.py, gone.py, new.py"
    ]
    assert own_code(then, {**then, "b.py": "9"}, against="main (0123)") == [
        "1 of 3 files that this step imports differs from main (0123)'s: b.py"
    ]
    assert own_code(then, then) == ["all 3 files that this step imports are the same as for the baseline"]
    assert own_code({}, then) == ["the baseline does not say which code made it"]
    assert own_code(then, {}) == [], "of a launch that was killed nobody knows"
    many = {f"{number}.py": "1" for number in range(8)}
    assert own_code(many, dict.fromkeys(many, "2"))[0].endswith("'s: 0.py, 1.py, 2.py, 3.py, 4.py, 5.py, and 2 more")


def test_a_red_row_says_if_nothing_recorded_differs() -> None:
    assert suspects() == ["  differs   nothing in the recorded environment"]


@pytest.mark.parametrize(("count", "shown", "last"), [(12, 12, "11: a → b"), (13, 13, "and 1 more")])
def test_only_the_first_of_many_suspects_are_shown(count: int, shown: int, last: str) -> None:
    lines = suspects(*((str(number), "a", "b") for number in range(count)))
    assert (lines[0], len(lines), lines[-1]) == ("  differs   0: a → b", shown, f"            {last}")


# What was saved


@pytest.mark.parametrize(
    ("now", "replaced", "words"),
    [
        (measured(90.0), None, "90.00 ms a step, new"),
        (measured(90.0), measured(100.0), "100.00 → 90.00 ms a step (10.0% faster)"),
        (measured(1250.0), measured(1000.0), "1,000.00 → 1,250.00 ms a step (25.0% slower)"),
        (measured(90.0), record(failed("oom")), "90.00 ms a step, was oom"),
        (record(failed("oom")), measured(90.0), "oom, was 90.00 ms a step"),
        (record(failed("oom")), record(failed("oom")), "oom, was oom"),
        (record(failed("oom")), None, "oom, new"),
        (steps(100.0, 104.0), steps(100.0, 100.0, 200.0), "100.00 → 102.00 ms a step (2.0% slower)"),
    ],
    ids=[
        "new",
        "faster",
        "slower",
        "fits now",
        "no longer fits",
        "still does not",
        "never did",
        "median of the launches",
    ],
)
def test_a_save_line_says_what_was_replaced(now: Record, replaced: Record | None, words: str) -> None:
    save = Saved(path=Path("baselines/h200-sxm/x.json"), record=now, replaced=replaced)
    assert (
        terminal.saved([save, save], wanted=1).splitlines()
        == [f"saved sharding[zero2-dp2]: {words} → baselines/h200-sxm/x.json"] * 2
    )


def test_saving_fewer_launches_than_the_default_is_noted_once() -> None:
    saves = [
        Saved(path=Path("x.json"), record=one, replaced=None)
        for one in (measured(90.0), steps(*[90.0] * 5), record(failed("oom")))
    ]
    *_, last = terminal.saved(saves, wanted=5).splitlines()
    assert last == "1 of 3 baselines have fewer than 5 launches, so that runs see less"
    assert terminal.few_launches([one.record for one in saves[1:]], wanted=5) == ""


# Markdown


def test_markdown_has_the_failures_before_the_table_and_the_notes() -> None:
    """The table of a hundred rows is longer than a screen."""
    rows = [OK, CRASH, NEW, NEWER]
    report = markdown.report(rows, "4 × NVIDIA H200", {})
    assert report == (
        text("""
        ## Training benchmark: 1 ok, 2 no-baseline, 1 crash

        4 rows: 1 judged their time, 3 nothing

        4 × NVIDIA H200

        <details open><summary>crash: sharding[bad-dp4]: rank 1 was killed by SIGSEGV while timing 20 steps</summary>

        ```text
        crash: sharding[bad-dp4]: rank 1 was killed by SIGSEGV while timing 20 steps

            Traceback:

              line 1
        ```

        </details>

        | case                |   samples/s |   step ms |   peak MiB |   TFLOPS |   MFU |   launches |   change |   sees | outcome     |
        |:--------------------|------------:|----------:|-----------:|---------:|------:|-----------:|---------:|-------:|:------------|
        | sharding[ddp-dp4]   |       39.84 |    100.40 |     11,193 |      410 | 41.0% |          3 |    −0.4% |  ≥1.7% | ok          |
        | sharding[bad-dp4]   |             |    100.00 |            |          |       |          2 |          |        | crash       |
        | sharding[new-dp4]   |       80.00 |     50.00 |     11,193 |      824 | 82.4% |          3 |          |        | no-baseline |
        | sharding[newer-dp4] |       72.73 |     55.00 |     11,193 |      749 | 74.9% |          3 |          |        | no-baseline |

        - no-baseline: 2 rows: there is no baseline for this case on this hardware; --save-baseline stores one
        """)  # noqa: E501
        + "\n"
    )


def test_a_row_that_fails_only_in_this_session_is_a_failure_and_no_note() -> None:
    """With ``CI`` set, a row without a baseline fails. With ``--fail-on-improvement``, an improvement fails."""
    better = row(measured(80.0), label="sharding[fast-dp4]", fails=True, accept="pytest --save-baseline")
    report = markdown.report([OK, better, dataclasses.replace(NEW, fails=True), NEWER], "header", {})
    firsts = re.findall("<details open><summary>(improvement|no-baseline): sharding", report)
    assert firsts == ["improvement", "no-baseline"]
    assert "  accept    pytest --save-baseline\n" in report
    assert terminal.notes([better, dataclasses.replace(NEW, fails=True)]) == []


def test_markdown_shows_drifts_before_the_table_and_short_histories_after() -> None:
    drift, few = "drift: a: step time 2.4% worse since 2026-10-02", "history: 3 nights of these rows"
    report = markdown.report([OK], "header", {}, [few, drift])
    assert report.index(f"\n- {drift}\n") < report.index("| case ") < report.index(f"\n- {few}\n")


def test_markdown_unfolds_the_first_failures_and_titles_all_of_them() -> None:
    reason = "TypeError: <class 'int'> & <lambda>"
    crash = dataclasses.replace(CRASH, verdict=dataclasses.replace(CRASH.verdict, reason=reason))
    report = markdown.report([crash] * 5, "header", {})
    said = "<summary>crash: sharding[bad-dp4]: TypeError: &lt;class 'int'&gt; &amp; &lt;lambda&gt;</summary>"
    assert (report.count(f"<details open>{said}"), report.count(f"<details>{said}")) == (3, 2)


def test_markdown_of_400_crashes_is_small_enough_for_github() -> None:
    rows = [dataclasses.replace(CRASH, label=f"row[{number}]", detail="x" * 5000) for number in range(400)]
    report = markdown.report(rows, "header", {})
    assert len(report.encode()) < 2**20
    assert report.count("<details") == 98
    assert "The full reports of these rows are in the log and in JUnit's file:" in report
    assert "- crash: row[399]: rank 1 was killed by SIGSEGV while timing 20 steps\n" in report


def test_markdown_of_ok_rows_is_only_the_first_line_and_the_table() -> None:
    assert markdown.report([OK], "header", {}).count("\n\n") == 3


# What a night judged


def told(*outcomes: str) -> Row:
    """A row whose step time, device time, kernels and FLOPs ended so."""
    changes = [
        Change(metric=name, before=1.0, now=1.0, change=0.0, sees=0.0, outcome=outcome)
        for name, outcome in zip(("step_ms", "compute_ms", "kernels", "flops_per_step"), outcomes, strict=False)
    ]
    return Row(label="a", verdict=Verdict(outcome="ok", changes=tuple(changes)))


def test_the_first_line_says_how_many_rows_judged_what() -> None:
    rows = [
        *[told("ok", "ok", "ok")] * 3,
        told("noisy", "ok", "ok"),
        told("noisy", "noisy", "ok"),
        told("noisy", "noisy", "not judged", "ok"),
        CRASH,
        skipped("b"),
        Row(label="c", verdict=Verdict(outcome="oom", reason="as before")),
    ]
    line = "7 rows: 3 judged their time, 1 only their device's time, 1 only counts and memory, 2 nothing"
    assert terminal.census(rows) == line
    assert markdown.report(rows, "header", {}).splitlines()[2] == line
    assert terminal.census([skipped("b")]) == ""
    assert terminal.census([told("environment")]) == "1 row: 1 judged its time"
    slow = Change(metric="samples_per_s", before=2.0, now=1.0, change=-0.5, sees=0.1, outcome="regression")
    both = dataclasses.replace(told("noisy").verdict, changes=(*told("noisy").verdict.changes, slow))
    assert both.judged == "time", "throughput tells of the time if it is red"


def test_too_many_rows_that_judged_no_time_fail_the_run() -> None:
    half = [told("ok"), told("noisy", "noisy", "ok")]
    assert not terminal.too_blind(half, 0.5)
    most = [*half, told("noisy")]
    assert terminal.too_blind(most, 0.5) and not terminal.too_blind(most, 1.0)
    said = "; more than 50% judged no time, so the run fails where CI is set (--unjudged-share)"
    assert terminal.census(most, most=0.5).endswith(said)
    assert not terminal.too_blind([skipped("b")], 0.5)


def test_tables_of_the_suite_follow_with_their_titles() -> None:
    cells = pd.DataFrame({"case": ["a", "b"], "gain": ["+3.1%", ""], "where": ["b64 × 512", "b8 × 128"]})
    assert markdown.report([OK], "header", {"Best of the grid": cells}).endswith(
        text("""

        ### Best of the grid

        | case   |   gain | where     |
        |:-------|-------:|:----------|
        | a      |  +3.1% | b64 × 512 |
        | b      |        | b8 × 128  |
        """)
        + "\n"
    )


# Parts of a step


def test_notes_name_host_bound_rows() -> None:
    rows = [row(measured(100.0, host_ms=host_ms), label=f"host {host_ms}") for host_ms in (89.0, 91.0)]
    assert terminal.notes(rows) == ["host-bound: host 91.0: the host's time to issue a step sets the step time"]


def test_a_red_row_shows_which_part_of_the_step_grew() -> None:
    then = measured(100.0, compute_ms=60.0, exposed_communication_ms=30.0, host_ms=50.0)
    now = measured(120.0, compute_ms=60.1, exposed_communication_ms=49.8, host_ms=50.2)
    lines = terminal.failure(row(now, then, label="sharding[ddp-dp4]")).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("  parts"))
    assert lines[start : start + 3] == [
        "  parts     compute time of the device: 60.00 → 60.10 ms (+0.10)",
        "            exposed communication: 30.00 → 49.80 ms (+19.80)",
        "            host time to issue a step: 50.00 → 50.20 ms (+0.20)",
    ]


def test_a_judged_part_has_one_figure_in_the_whole_report() -> None:
    """The judged figure is Huber's estimate of the launches' middle, which differs from their median."""
    parts = [metric("compute_ms", values) for values in ([27.5, 27.6, 28.4], [27.5, 28.3, 28.4])]
    said = terminal.failure(row(parts[1], parts[0], label="a"))
    judged, part = re.findall(r"compute time of the device: (.*?) ms", said)
    assert [f"{float(figure):.2f}" for figure in judged.split(" → ")] == part.split(" → ")


def test_notes_say_that_two_tests_of_one_case_share_a_measurement() -> None:
    again = dataclasses.replace(OK, label="graph[eager-dp4]", same_as=OK.label)
    assert terminal.notes([OK, again]) == ["graph[eager-dp4] is the same case as sharding[ddp-dp4]: measured once"]
