"""The ways to split training over data-parallel ranks, by name. A strategy is a function and its row here.

A strategy's function takes the model, its data-parallel mesh, the recipe and the options of its row. It returns a
:class:`~bench_tests.training.recipe.Trainee`. The options are chosen for GPUs with all-to-all links, where the host
sets the pace and the links do not: few calls and large messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from bench_tests.training.recipe import Trainee

RECORDED = "bench_tests.strategies.recorded:recorded"
"""The function of rows whose steps are a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train.

    ``function`` is an import path ``package.module:function``. It is called with ``options``. ``reference`` is the key
    in :data:`REFERENCES` of the unsharded training that must have the same losses.
    :mod:`bench_tests.tolerances` says how far the losses may be from the unsharded model's losses.
    """

    function: str
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reference: str = "reference"

    @property
    def recorded(self) -> bool:
        """Whether each step replays a CUDA graph."""
        return self.function == RECORDED

    def missing(self, device_kind: str, precision: str) -> str | None:
        """Why the row cannot train in this number format on this kind of device; ``None`` if it can."""
        if self.recorded and device_kind != "cuda":
            return f"CUDA graphs need a CUDA device, and the devices here are of kind {device_kind}"
        if self.recorded and precision == "fp16":
            return "a CUDA graph cannot contain an fp16 step: the gradient scaler waits for the device"
        return None

    def resolve(self) -> Callable[..., Trainee]:
        function: Callable[..., Trainee] = resolve_name(self.function)
        return function


@dataclass(frozen=True, kw_only=True)
class Strategy(Method):
    """A data-parallel way to train.

    ``amp`` says whether the row uses 16-bit matrix products. ``accumulates`` says whether the function takes
    ``micro_batches``. ``gates`` widens the limits of metrics that vary more than in other rows; the keys and values are
    those of the marker ``gate``.
    """

    amp: bool = True
    accumulates: bool = False
    gates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


Row = TypeVar("Row", bound=Method)


def recorded_row(row: Row, title: str, *, eager_steps: int, **changes: Any) -> Row:
    """``row`` with each step recorded as a CUDA graph and replayed, so that a step is no longer host-bound.

    The first ``eager_steps`` steps run eagerly. Four are enough if the first step creates all streams, states and
    communicators, as FSDP2's first step does.
    """
    return replace(
        row,
        function=RECORDED,
        title=title,
        options={"of": row.function, "eager_steps": eager_steps, **row.options},
        **changes,
    )


ROUNDED = "reference-16-bit-weights"
"""The reference of libraries that round the weights of a model before they copy them for the optimizer."""

DDP_OPTIONS = {
    "bucket_cap_mb": 100,
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "broadcast_buffers": False,
}

BESIDE_MESSAGES = {"compute_ms": {"tolerance": 0.15}}
"""A kernel takes longer while parameters are being sent. Which kernels that affects depends on the timing of the ranks:
the same kernels took 32 to 39 ms on four H200s."""

HOST_PACED = {"step_ms": {"tolerance": 0.15}, **BESIDE_MESSAGES}
"""The row is host-bound or nearly host-bound: on 4 H200s launches a few minutes apart differed by 8 % with their
host."""

ZERO_OPTIONS = {"reduce_bucket_size": 100_000_000, "allgather_bucket_size": 200_000_000, "overlap_comm": True}

STRATEGIES = {
    "ddp-fp32": Strategy(
        function="bench_tests.strategies.ddp:ddp",
        title="no acceleration (DDP with `gradient_as_bucket_view=True`)",
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
        # SDP frees a gradient when it notices that the reduction is done, and it checks only now and then. Peak memory
        # therefore varies with timing: 16.4 to 21.3 GB.
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
        reference=ROUNDED,
        accumulates=True,
        gates=HOST_PACED,
    ),
    "zero2": Strategy(
        function="bench_tests.strategies.zero:zero",
        title="AMP + ZeRO stage 2 (+ gradients)",
        options={"stage": 2, **ZERO_OPTIONS},
        reference=ROUNDED,
        accumulates=True,
        gates=HOST_PACED,  # like stage 1: with one micro-batch a step, both stages do the same
    ),
    "zero3": Strategy(
        function="bench_tests.strategies.zero:zero",
        title="AMP + ZeRO stage 3 (+ parameters)",
        reference=ROUNDED,
        accumulates=True,
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
"""The baseline of the data-parallel suite: DDP with its default options."""

ACCELERATORS = {
    "ddp-tuned": Strategy(
        function="bench_tests.strategies.ddp:ddp",
        title="DDP with large buckets, `gradient_as_bucket_view=True`, static graph, no buffer broadcast",
        options=DDP_OPTIONS,
    ),
    "bf16-gradients": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compressed_gradients",
        title="gradients reduced in bf16",
        options={"dtype": "bf16"},
    ),
    "fp16-gradients": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compressed_gradients",
        title="gradients reduced in fp16",
        options={"dtype": "fp16"},
    ),
    "powersgd": Strategy(
        function="bench_tests.strategies.accelerated_ddp:power_sgd",
        title="gradients reduced as matrices of rank 4 (PowerSGD)",
        options={"rank": 4, "start": 2},
    ),
    "local-sgd": Strategy(
        function="bench_tests.strategies.accelerated_ddp:local_sgd",
        title="parameters averaged every 4 steps (post-local SGD)",
        options={"start": 4, "period": 4},
    ),
    "compiled-ddp": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compiled",
        title="torch.compile around DDP",
    ),
    "compiled-autograd": Strategy(
        function="bench_tests.strategies.accelerated_ddp:compiled",
        title="torch.compile around DDP, and the backward pass one graph with its reductions",
        options={"backward": True},
    ),
}
"""Accelerated variants of data parallelism. Tables compare each of them with :data:`PLAIN_DDP`, so a row added here
adds a comparison."""

ACCELERATORS["recorded-ddp"] = recorded_row(
    ACCELERATORS["ddp-tuned"],
    "tuned, and each step replayed as a CUDA graph",
    # DDP times its first ten steps with events, which a CUDA graph cannot contain.
    eager_steps=11,
)

DATA_PARALLEL = {
    PLAIN_DDP: Strategy(function="bench_tests.strategies.ddp:ddp", title="DDP with its defaults"),
    **ACCELERATORS,
}

REFERENCES = {
    "reference": Strategy(
        function="bench_tests.strategies.reference:reference",
        title="one process, nothing split: what the others must compute",
        accumulates=True,
    ),
    ROUNDED: Strategy(
        function="bench_tests.strategies.reference:reference",
        title="one process, nothing split, 16-bit weights beside the optimizer's fp32 weights",
        options={"rounds_weights": True},
        accumulates=True,
    ),
}


def find_strategy(name: str) -> Strategy:
    """The row called ``name``, which may be a reference. Raises ``ValueError`` with the known names for any other
    name."""
    rows = {**STRATEGIES, **DATA_PARALLEL, **REFERENCES}
    if name not in rows:
        raise ValueError(f"strategy {name!r} is unknown; known: {', '.join(rows)}")
    return rows[name]
