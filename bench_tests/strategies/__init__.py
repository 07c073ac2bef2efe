"""The ways to split training over data-parallel ranks, by name. A strategy is a function and its row here.

A function takes the model, its data-parallel mesh, the recipe and the options of its row, and gives back a
:class:`~bench_tests.strategies.recipe.Trainee`. Options are chosen for GPUs that are linked all to all,
where the host, not the link, sets the pace: few calls, large messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_trainbench.judge.validity import LOSS_STEPS

if TYPE_CHECKING:
    from bench_tests.strategies.recipe import Trainee

RECORDED = "bench_tests.strategies.recorded:recorded"
"""The function of a row whose steps are a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train. ``function`` is an import path ``package.module:function``, called with ``options``;
    ``loss_tolerance`` is how far the losses may be from the unsharded model's, as a fraction of its fall."""

    function: str
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_tolerance: float = 0.01

    @property
    def recorded(self) -> bool:
        """Whether its steps are a CUDA graph."""
        return self.function == RECORDED

    def missing(self, device_kind: str, precision: str) -> str | None:
        """Why it cannot train in this number format on devices of this kind; ``None`` where it can."""
        if self.recorded and device_kind != "cuda":
            return f"CUDA graphs need a CUDA device, and the devices here are of kind {device_kind}"
        if self.recorded and precision == "fp16":
            return "a step in fp16 cannot be recorded as a CUDA graph: its gradient scaler waits for the device"
        return None

    def resolve(self) -> Callable[..., Trainee]:
        function: Callable[..., Trainee] = resolve_name(self.function)
        return function


@dataclass(frozen=True, kw_only=True)
class Strategy(Method):
    """``amp`` is whether the row is meant for 16-bit matrix products; ``accumulates``, whether the function takes
    ``micro_batches``. ``loss_tolerance`` is two to three times what was seen in bf16, on 4 H200s where the row is one
    of sharding's. ``gates``: limits of metrics that cannot be had as tight as the others', as the marker ``gate`` takes
    them. ``loss_steps``: the first and the last step whose losses are compared.
    """

    amp: bool = True
    accumulates: bool = False
    gates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    loss_steps: tuple[int, int] = LOSS_STEPS


Row = TypeVar("Row", bound=Method)


def recorded_row(row: Row, title: str, *, eager_steps: int, **changes: Any) -> Row:
    """``row``, recorded after ``eager_steps`` and replayed: what its host needs for a step no longer shows. Four are
    enough where the first makes all streams, states and communicators, as FSDP2's does."""
    return replace(
        row,
        function=RECORDED,
        title=title,
        options={"of": row.function, "eager_steps": eager_steps, **row.options},
        **changes,
    )


DDP_OPTIONS = {
    "bucket_cap_mb": 100,
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "broadcast_buffers": False,
}

ZERO_TOLERANCE = 0.05
"""DeepSpeed begins from weights that it has rounded to 16 bits, and reduces gradients in 16 bits."""

BESIDE_MESSAGES = {"compute_ms": {"tolerance": 0.15}}
"""A kernel takes longer while parameters are on their way, and which ones do depends on how the ranks meet: the same
kernels took 32 to 39 ms on four H200s."""

HOST_PACED = {"step_ms": {"tolerance": 0.15}, **BESIDE_MESSAGES}
"""The device waits for the host, or nearly so: on 4 H200s launches a few minutes apart differed by 8 % with it."""

ZERO_OPTIONS = {"reduce_bucket_size": 100_000_000, "allgather_bucket_size": 200_000_000, "overlap_comm": True}

STRATEGIES = {
    "ddp-fp32": Strategy(
        function="bench_tests.strategies.ddp:ddp",
        title="no acceleration (DDP, gradients as bucket views)",
        options=DDP_OPTIONS,
        amp=False,
    ),
    "ddp": Strategy(
        function="bench_tests.strategies.ddp:ddp",
        title="AMP",
        options=DDP_OPTIONS,
    ),
    "oss": Strategy(
        function="bench_tests.strategies.fairscale:oss",
        title="AMP + optimizer state sharding (FairScale OSS)",
        options=DDP_OPTIONS,
    ),
    "oss-sdp": Strategy(
        function="bench_tests.strategies.fairscale:oss_sdp",
        title="AMP + OSS + Sharded Data Parallel (FairScale SDP)",
        options={"reduce_buffer_size": 2**23},
        # It frees a gradient when it finds it reduced, and looks now and then: by the timing of that, 16.4 to 21.3 GB.
        gates={"peak_allocated_bytes": {"tolerance": 0.3}},
    ),
    "fairscale-fsdp": Strategy(
        function="bench_tests.strategies.fairscale:fsdp",
        title="AMP + Fully Sharded Data Parallel (FairScale FSDP)",
        options={"reshard_after_forward": True, "blocks_per_unit": 3},
        gates=BESIDE_MESSAGES,
    ),
    "fsdp1": Strategy(
        function="bench_tests.strategies.fsdp:fsdp1",
        title="AMP + Fully Sharded Data Parallel (torch FSDP1)",
        options={
            "forward_prefetch": False,
            "limit_all_gathers": False,
            "use_orig_params": False,
            "blocks_per_unit": 4,
        },
        gates=BESIDE_MESSAGES,
    ),
    "fsdp2": Strategy(
        function="bench_tests.strategies.fsdp:fsdp2",
        title="AMP + Fully Sharded Data Parallel (torch FSDP2)",
        options={"reshard_after_forward": True, "blocks_per_unit": 4},
        gates=HOST_PACED,
    ),
    "zero1": Strategy(
        function="bench_tests.strategies.zero:zero",
        title="AMP + ZeRO stage 1 (optimizer state)",
        options={"stage": 1, **ZERO_OPTIONS},
        accumulates=True,
        loss_tolerance=ZERO_TOLERANCE,
        gates=HOST_PACED,
    ),
    "zero2": Strategy(
        function="bench_tests.strategies.zero:zero",
        title="AMP + ZeRO stage 2 (+ gradients)",
        options={"stage": 2, **ZERO_OPTIONS},
        accumulates=True,
        loss_tolerance=ZERO_TOLERANCE,
        gates=HOST_PACED,  # as stage 1: with one micro-batch a step both do the same
    ),
    "zero3": Strategy(
        function="bench_tests.strategies.zero:zero",
        title="AMP + ZeRO stage 3 (+ parameters)",
        accumulates=True,
        loss_tolerance=ZERO_TOLERANCE,
        gates=HOST_PACED,
        options={
            "stage": 3,
            "blocks_per_unit": 4,
            "overlap_comm": True,
            "reduce_bucket_size": 100_000_000,
            "stage3_prefetch_bucket_size": 100_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
        },
    ),
}
STRATEGIES["fsdp2-recorded"] = recorded_row(
    STRATEGIES["fsdp2"],
    "AMP + torch FSDP2, each step replayed as a CUDA graph",
    eager_steps=4,
    gates=BESIDE_MESSAGES,
)

PLAIN_DDP = "ddp-default"
"""What data parallelism is measured against: DDP as one gets it without asking for anything."""

ROUNDED_TOLERANCE = 0.1
"""Gradients rounded to 16 bits before they are added up, or kernels that round elsewhere. Like the tolerance of
PowerSGD, two to three times the most that any small model of the suite showed on a CPU in bf16."""

ACCELERATORS = {
    "ddp-tuned": Strategy(
        function="bench_tests.strategies.ddp:ddp",
        title="large buckets, gradients as views of them, static graph, no broadcast of buffers",
        options=DDP_OPTIONS,
    ),
    "bf16-gradients": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compressed_gradients",
        title="gradients reduced in bf16",
        options={"dtype": "bf16"},
        loss_tolerance=ROUNDED_TOLERANCE,
    ),
    "fp16-gradients": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compressed_gradients",
        title="gradients reduced in fp16",
        options={"dtype": "fp16"},
        loss_tolerance=ROUNDED_TOLERANCE,
    ),
    "powersgd": Strategy(
        function="bench_tests.strategies.accelerated_ddp:power_sgd",
        title="gradients reduced as matrices of rank 4 (PowerSGD)",
        options={"rank": 4, "start": 2},
        loss_tolerance=0.3,
    ),
    "local-sgd": Strategy(
        function="bench_tests.strategies.accelerated_ddp:local_sgd",
        title="parameters averaged every 4 steps (post-local SGD)",
        options={"start": 4, "period": 4},
        # Another computation: all that is asked is that it has come a good part of the way.
        loss_tolerance=0.7,
    ),
    "compiled-ddp": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compiled",
        title="torch.compile around DDP",
        loss_tolerance=ROUNDED_TOLERANCE,
    ),
    "compiled-autograd": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compiled",
        title="torch.compile around DDP, and the backward pass one graph with its reductions",
        options={"backward": True},
        loss_tolerance=ROUNDED_TOLERANCE,
    ),
}
"""Faster kinds of data parallelism, each held against :data:`PLAIN_DDP`. A row added here is one more to compare."""

ACCELERATORS["recorded-ddp"] = recorded_row(
    ACCELERATORS["ddp-tuned"],
    "tuned, and each step replayed as a CUDA graph",
    # DDP times its first ten steps with events, which cannot be part of a graph.
    eager_steps=11,
    loss_steps=(1, 16),
)

DATA_PARALLEL = {
    PLAIN_DDP: Strategy(function="bench_tests.strategies.ddp:ddp", title="DDP with its defaults"),
    **ACCELERATORS,
}

REFERENCE = Strategy(
    function="bench_tests.strategies.reference:reference",
    title="one process, nothing split: what the others must compute",
    accumulates=True,
)


def find_strategy(name: str) -> Strategy:
    """The row called ``name``, or ``reference``; raises ``ValueError`` that lists the names for any other."""
    rows = {**STRATEGIES, **DATA_PARALLEL, "reference": REFERENCE}
    if name not in rows:
        raise ValueError(f"strategy {name!r} is unknown; known: {', '.join(rows)}")
    return rows[name]
