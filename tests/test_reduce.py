"""The traces of all ranks become one launch. An implausible launch is invalid, with its first fault as the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
from samples import MIB, record, trace

from pytest_trainbench.judge.aggregate import reduce, steady_from
from pytest_trainbench.judge.compare import learn
from pytest_trainbench.judge.validity import loss_deviation, loss_fault
from pytest_trainbench.judge.verdict import judge
from pytest_trainbench.schema.record import Launch, Trace, dump


def pair(**both: Any) -> list[Trace]:
    return [trace(0, **both), trace(1, **both)]


def phases(**replaced: float) -> dict[str, float]:
    """Seconds of a rank's phases in their order, by the first word of each phase."""
    sample = {"starting": 0.5, "opening": 0.125, "joining": 0.25, "building": 0.5, "counting": 2.0, "warming": 4.0}
    return {**sample, **replaced}


# The steady window


@pytest.mark.parametrize("slow", [0, 1, 3, 9])
def test_slow_first_steps_are_left_out(slow: int) -> None:
    warming = [130.0 - 3 * step for step in range(slow)]
    steady = [100.0 + 0.2 * (step % 3) for step in range(30 - slow)]
    assert steady_from(warming + steady) == slow


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 20])
def test_equal_steps_are_all_kept(steps: int) -> None:
    assert steady_from([0.1] * steps) == 0


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 20, 21])
def test_more_than_half_of_the_steps_are_kept_however_slowly_they_settle(steps: int) -> None:
    assert steps - steady_from([2.0**-step for step in range(steps)]) > steps / 2


def test_a_slow_last_step_removes_no_steady_step() -> None:
    assert steady_from([100.0] * 19 + [150.0]) == 0


@pytest.mark.parametrize("steps", [4, 5, 20, 200])
@pytest.mark.parametrize("ms", [1.0, 1000.0])
def test_a_single_outlier_removes_no_other_step(steps: int, ms: float) -> None:
    def with_outlier(at: int) -> list[float]:
        return [100.0] * at + [ms] + [100.0] * (steps - at - 1)

    assert [steady_from(with_outlier(at)) for at in range(steps)] == [1] + [0] * (steps - 1)


@pytest.mark.parametrize("slow", [0, 1, 3, 9])
def test_an_outlier_after_a_slow_start_does_not_move_the_window(slow: int) -> None:
    warming = [130.0 - 3 * step for step in range(slow)]
    steady = [100.0 + 0.2 * (step % 3) for step in range(30 - slow)]
    for at in range(2, 30 - slow):
        assert steady_from(warming + steady[:at] + [150.0] + steady[at + 1 :]) == slow


@pytest.mark.parametrize("step", [4, 6, 7, 8, 9])
def test_slightly_slow_first_steps_are_left_out_too(step: int) -> None:
    """The first steps are slower by twice the width of the noise. They are warm-up, not outliers."""
    noise = [0.0, 0.2, 0.4, 0.1, 0.3]
    assert steady_from([100.0 + noise[at % 5] + (0.8 if at < step else 0.0) for at in range(40)]) == step


def test_regular_slow_steps_stay_in_the_window() -> None:
    assert steady_from([150.0 if step % 10 == 7 else 100.0 for step in range(200)]) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_figure_that_is_not_finite_is_named_and_the_others_are_kept(value: float) -> None:
    found = reduce(pair(figures={"perplexity": value, "gb_per_s": 7.0}), peak_tflops=None)
    assert (found.outcome, found.figures) == ("invalid", {"gb_per_s": 7.0})
    assert found.reason == f"the step's own figure perplexity is {value}"


def test_an_outlier_in_the_window_counts_in_the_throughput() -> None:
    found = reduce(pair(step_ms=[100.0] * 5 + [200.0] + [100.0] * 14), peak_tflops=None)
    assert (found.steady_from, found.metrics["step_ms"]) == (0, 100.0)
    assert found.metrics["samples_per_s"] == pytest.approx(8 * 20 / 2.1)


# The figures of a launch


def test_a_launch_has_the_figures_of_its_slowest_rank() -> None:
    first = trace(
        0,
        step_ms=[150.0, 100.0, 101.0, 100.0, 100.0, 101.0],
        losses=[4.0, 3.0, 2.0],
        memory={"peak_allocated_bytes": 700 * MIB, "peak_reserved_bytes": 900 * MIB},
        phases_s=phases(joining=1.0, building=1.0, timing=0.652),
    )
    second = trace(
        1,
        step_ms=[120.0, 101.0, 100.0, 100.0, 101.0, 107.0],
        losses=[6.0, 4.0, 3.0],
        memory={"peak_allocated_bytes": 800 * MIB, "peak_reserved_bytes": 800 * MIB},
        phases_s=phases(joining=0.25, building=2.5, timing=0.629),
    )
    total_s = 0.509  # rank 1 from its second step on; the slowest ranks of all steps add up to 0.510
    found = reduce([first, second], peak_tflops=100.0)
    assert found.metrics == pytest.approx(
        {
            "step_ms": 101.0,
            "samples_per_s": 8 * 5 / total_s,
            "tokens_per_s": 8192 * 5 / total_s,
            "peak_allocated_bytes": 800 * MIB,
            "peak_reserved_bytes": 900 * MIB,
            "samples_per_step": 8,
            "tokens_per_step": 8192,
            "flops_per_step": 4 * 10**12,
            "tflops_per_device": 4.0 * 5 / total_s / 2,
            "mfu": 4.0 * 5 / total_s / 2 / 100,
            "start_s": 0.5 + 0.125 + 0.25 + 2.5,  # rank 1, not the slowest rank of each phase
        }
    )
    assert found == Launch(
        step_ms=[150.0, 101.0, 101.0, 100.0, 101.0, 107.0],
        steady_from=1,
        losses=[5.0, 3.5, 2.5],
        metrics=found.metrics,
        phases_s=phases(joining=1.0, building=2.5, timing=0.652),
    )


def test_collectives_are_summed_over_ranks_and_compilations_are_the_maximum() -> None:
    sends = {"send": {"calls": 4.0, "bytes": 100.0}}
    found = reduce(
        [
            trace(0, collectives={**sends, "recv": {"calls": 4.0, "bytes": 0.0}}, compilations={"recompiles": 1.0}),
            trace(1, collectives=sends, compilations={"recompiles": 2.0, "graph_breaks": 0.0}),
        ],
        peak_tflops=None,
    )
    assert found.collectives == {"recv": {"calls": 4.0, "bytes": 0.0}, "send": {"calls": 8.0, "bytes": 200.0}}
    names = ("collectives", "collective_bytes", "graph_breaks", "recompiles")
    assert [found.metrics[name] for name in names] == [12.0, 200.0, 0.0, 2.0]


@pytest.mark.parametrize(("collectives", "expected"), [(None, None), ({}, 0.0)])
def test_zero_collectives_is_a_count_and_uncounted_collectives_are_absent(
    collectives: Any, expected: float | None
) -> None:
    found = reduce([trace(0, collectives={}), trace(1, collectives=collectives)], peak_tflops=None)
    assert found.collectives == {}
    assert (found.metrics.get("collectives"), found.metrics.get("collective_bytes")) == (expected, expected)


@pytest.mark.parametrize("after", ["counting", "warming", "timing", "training"])
def test_the_start_ends_where_the_first_step_begins(after: str) -> None:
    assert reduce(pair(phases_s=phases(**{after: 100.0})), peak_tflops=None).metrics["start_s"] == 1.375


def test_unknown_figures_are_absent_and_never_guessed() -> None:
    bare: dict[str, Any] = {"flops": None, "flops_counted": None, "tokens": None, "memory": {}}
    assert set(reduce(pair(**bare), peak_tflops=None).metrics) == {
        "step_ms",
        "samples_per_s",
        "samples_per_step",
        "start_s",
    }
    assert "mfu" not in reduce(pair(), peak_tflops=None).metrics


def test_flops_are_a_whole_number_and_the_counted_one_if_available() -> None:
    counted = reduce(pair(flops=1001.0, flops_counted=500.0), peak_tflops=None)
    formula = reduce(pair(flops=1000.4, flops_counted=None), peak_tflops=None)
    for found in (counted, formula):
        assert found.metrics["flops_per_step"] == 1000
        assert isinstance(found.metrics["flops_per_step"], int)


def test_a_rank_without_a_loss_does_not_count_in_the_mean_loss() -> None:
    last = [4.0, 3.0, 2.0]
    traces = [trace(0, coordinates={"pp": 0, "dp": 0}, losses=[None] * 3, replicated=False)]
    traces += [trace(1, coordinates={"pp": 1, "dp": 0}, losses=last, replicated=False)]
    assert reduce(traces, peak_tflops=None).losses == last


# Guards


def fault(traces: list[Trace], peak_tflops: float | None = None) -> str | None:
    found = reduce(traces, peak_tflops=peak_tflops)
    assert found.outcome == ("ok" if found.reason is None else "invalid")
    assert found.metrics["step_ms"] == 100.0, "figures are kept whatever the fault"
    return found.reason


def test_a_sound_launch_has_no_fault() -> None:
    assert fault(pair(), peak_tflops=1000.0) is None


def test_a_launch_without_any_loss_is_invalid() -> None:
    assert fault(pair(losses=[None] * 6)) == "no rank returned a loss: return the detached loss from Step.run"


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_invalid(number: float) -> None:
    broken = [trace(0), trace(1, losses=[4.0, 3.0, number, 2.2, 2.0, 1.9])]
    assert fault(broken) == f"the loss of step 3 is {number}"


def test_the_losses_before_a_nan_can_be_stored() -> None:
    found = reduce(pair(losses=[4.0, 3.0, math.nan, 2.0]), peak_tflops=None)
    assert found.losses == [4.0, 3.0]
    assert '"losses": [4.0, 3.0]' in dump(record(found).to_json())


@pytest.mark.parametrize("losses", [[2.0, 2.0, 2.0, 2.0], [2.0, 1.5, 1.9, 2.1], [2.0]])
def test_a_loss_that_does_not_fall_is_invalid(losses: list[float]) -> None:
    assert fault(pair(losses=losses)) == (
        "nothing was learned: the loss began at 2.0000; its second half averages 2.0000"
    )


def test_unchanged_parameters_are_invalid() -> None:
    frozen = [trace(0), trace(1, digest_after="before")]
    assert fault(frozen) == "no parameter of rank 1 changed"


def test_different_replicas_are_invalid() -> None:
    assert fault([trace(0), trace(1, digest_after="other")]) == (
        "data-parallel replicas differ: ranks 0 and 1 hold other parameters"
    )


def test_shards_may_differ_if_nothing_is_replicated() -> None:
    assert fault([trace(rank, digest_after=f"shard {rank}", replicated=False) for rank in range(2)]) is None


def grid(digests: list[str]) -> list[Trace]:
    """Four ranks, tensor-parallel in pairs: ranks 0 and 2 are replicas of each other, and so are 1 and 3."""
    return [
        trace(rank, coordinates={"dp": rank // 2, "tp": rank % 2}, digest_after=digest, flops_counted=1e12)
        for rank, digest in enumerate(digests)
    ]


def test_only_ranks_that_differ_in_dp_alone_are_replicas() -> None:
    assert fault(grid(["left", "right", "left", "right"])) is None
    assert fault(grid(["left", "right", "left", "wrong"])) == (
        "data-parallel replicas differ: ranks 1 and 3 hold other parameters"
    )


def test_flop_formula_and_counter_must_agree_within_one_percent() -> None:
    assert fault(pair(flops=4e12, flops_counted=2.018e12)) is None
    assert fault(pair(flops=4e12, flops_counted=2.022e12)) == (
        "the FLOP formula gives 4e+12 a step and the counter 4.044e+12 (+1.1%):"
        " the step computes something twice, or one of them is wrong"
    )
    assert fault(pair(flops=4e12, flops_counted=0.0)) == (
        "the FLOP formula gives 4e+12 a step and the counter 0 (-100.0%):"
        " the step leaves something out, or one of them is wrong"
    )


@pytest.mark.parametrize("missing", [{"flops": None}, {"flops_counted": None}])
def test_a_flop_formula_or_counter_alone_is_accepted(missing: dict[str, None]) -> None:
    assert fault([trace(0, **missing), trace(1, **missing)]) is None


def test_more_flops_than_the_device_peak_are_invalid() -> None:
    assert fault(pair(), peak_tflops=20.0) is None
    assert fault(pair(), peak_tflops=19.0) == (
        "its 105% of the device's peak is impossible: the step does not do the work it claims"
    )


def test_ranks_with_different_numbers_of_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        reduce([trace(0), trace(1, step_ms=[100.0] * 3)], peak_tflops=None)


# Against the reference

REFERENCE = [4.0, 3.0, 2.5, 2.0]


def test_losses_within_a_fraction_of_the_references_fall_pass() -> None:
    assert loss_fault([4.0, 3.09, 2.41, 2.0], REFERENCE, 0.05) is None


def test_the_worst_step_is_named() -> None:
    assert loss_fault([4.0, 3.11, 2.3, 2.15], REFERENCE, 0.05) == (
        "it trains wrong: the loss of step 3 is 2.3000 where the unsharded model has 2.5000;"
        " 10.0% of the fall, and 5.0% is allowed"
    )


def test_steps_before_the_first_compared_step_may_have_any_loss() -> None:
    """The fall still covers all steps."""
    astray = [4.0, 9.0, 2.41, 2.0]
    assert loss_fault(astray, REFERENCE, 0.05) is not None
    assert loss_fault(astray, REFERENCE, 0.05, since=3) is None
    assert loss_deviation(astray, REFERENCE, since=3) == pytest.approx(0.09 / 2)
    assert (
        loss_fault(REFERENCE, REFERENCE, 0.05, since=4) == "only 1 of its losses can be compared with the reference's"
    )
    assert loss_deviation(REFERENCE, REFERENCE, since=4) is None
    assert loss_fault(REFERENCE, REFERENCE, 0.05, 9) == "only 0 of its losses can be compared with the reference's"
    assert str(loss_fault([4.0, 9.0, 2.3, 2.0], REFERENCE, 0.05, since=3)).startswith(
        "it trains wrong: the loss of step 3"
    )


def test_a_high_loss_does_not_hide_a_small_fall() -> None:
    high = [100 + loss / 100 for loss in REFERENCE]
    assert loss_fault([high[0], *[100.04] * 3], high, 0.05) is not None


def test_only_steps_of_both_trainings_are_compared() -> None:
    assert loss_fault([*REFERENCE, 9.0], REFERENCE, 0.0) is None
    assert loss_fault(REFERENCE[:2], [*REFERENCE[:2], 9.0], 0.0) is None
    assert loss_fault([4.0], REFERENCE, 0.05) == "only 1 of its losses can be compared with the reference's"


@pytest.mark.parametrize("reference", [[2.0, 2.0, 2.0], [2.0, 2.1, 2.2], [2.0, math.nan, 1.5], [math.nan, 2.0, 1.5]])
def test_a_reference_that_learned_nothing_is_refused(reference: list[float]) -> None:
    seen = ", ".join(f"{loss:.4f}" for loss in reference)
    assert loss_fault([2.0, 1.8, 1.5], reference, 0.05) == (
        f"the unsharded model learned nothing to compare with: its losses were {seen}"
    )


# A part of a step


def test_a_part_of_a_step_needs_no_loss_but_must_write_something() -> None:
    kernel = trace(losses=[None] * 6, trains=False, flops_counted=None, figures={"gb_per_s": 4200.0})
    launch = reduce([kernel], peak_tflops=989.0)
    assert (launch.outcome, launch.reason, launch.losses) == ("ok", None, [])
    assert launch.figures == {"gb_per_s": 4200.0}
    idle = trace(losses=[None] * 6, trains=False, digest_after="before")
    assert reduce([idle], peak_tflops=989.0).reason == "rank 0 wrote nothing"


def test_compute_time_is_the_maximum_and_exposed_communication_the_minimum() -> None:
    """Both are taken over all ranks. Exposed communication above the minimum is waiting for other ranks."""
    parts = {"host_ms": 20.0, "compute_ms": 40.0, "exposed_communication_ms": 15.0, "kernels": 9}
    other = {**parts, "host_ms": 21.0, "compute_ms": 30.0, "exposed_communication_ms": 25.0}
    metrics = reduce([trace(parts=parts), trace(1, parts=other)], peak_tflops=None).metrics
    assert {name: metrics[name] for name in ("host_ms", "compute_ms", "exposed_communication_ms", "kernels")} == {
        "host_ms": 21.0,
        "compute_ms": 40.0,
        "exposed_communication_ms": 15.0,
        "kernels": 9,
    }
    assert "host_ms" not in reduce([trace()], peak_tflops=None).metrics


def test_exposed_communication_is_at_most_step_time_minus_compute_time() -> None:
    """Under the profiler, ranks wait longer for each other."""
    plain = reduce([trace()], peak_tflops=None).metrics["step_ms"]
    for compute_ms, exposed_ms in ((plain - 2.0, 2.0), (plain + 1.0, 0.0)):
        parts = {"host_ms": 1.0, "compute_ms": compute_ms, "exposed_communication_ms": 50.0, "kernels": 9}
        metrics = reduce([trace(parts=parts)], peak_tflops=None).metrics
        assert metrics["exposed_communication_ms"] == pytest.approx(exposed_ms)


def test_a_step_that_only_communicates_has_no_compute_time() -> None:
    """A compute time of 0 has no logarithm. It would break the row's own verdict and the noise of all other rows."""
    only = {"host_ms": 1.0, "compute_ms": 0.0, "exposed_communication_ms": 9.0, "kernels": 1.0}
    one = reduce([trace(parts=only), trace(1, parts=only)], peak_tflops=None)
    assert "compute_ms" not in one.metrics
    assert one.metrics["exposed_communication_ms"] == 9.0
    stored = record(*[one] * 3)
    assert judge(stored, stored, priors=learn([stored] * 3)).outcome == "ok"
