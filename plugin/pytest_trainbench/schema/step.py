"""The seam between the plugin and whatever is benchmarked: what a step builder returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Number formats of a matrix product's inputs. The peak that a step is held against depends on it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimisation step of a model that is being trained, as one rank sees it.

    run:
        Does one whole step (forward, backward, optimizer) and returns this rank's loss, a detached scalar
        tensor still on its device, or ``None`` on a rank that has none (a pipeline stage other than the
        last). It must neither synchronise nor call ``.item()``: that would be measured. Losses are read when
        all steps have run: one in memory that the next step writes to (a replay of a CUDA graph) has to be
        cloned.
    samples, tokens:
        Processed by one step on *all* ranks together.
    flops:
        Floating-point operations of one step on all ranks together by formula, a multiply-add counting as
        two; ``None`` where no formula is known.
    counts_flops:
        Whether ``torch.utils.flop_counter`` over ``run`` sees each operation of the formula exactly once, so
        that the two can be held against each other. False where the counter cannot see the work (compiled
        regions) or sees more than the model's (recomputation).
    dtype:
        Number format of the step's matrix products, one of :data:`DTYPES`.
    parameters:
        Gives the tensors (or this rank's shards of them) that training must change; with ``trains=False``, those
        that one run writes.
    replicated:
        Whether ``parameters`` must be equal, bit for bit, on ranks that differ only in their data-parallel
        position.
    trains:
        False for a part of a step, such as one layer or one product: ``run`` may return ``None`` on every rank, and
        nothing must be learned.
    period:
        Steps after which the work repeats, where not every step does the same: what is counted is counted over so
        many.
    eager_steps:
        Steps that run as they are before one is recorded (as a CUDA graph) and all that follow are replays; 0 where
        none is. They and the recording are never timed. What only Python's calls tell, such as collectives, is counted
        in the last of them.
    peak_bytes:
        Gives, after timing, the bytes that a step has allocated at most, where the device's allocator cannot tell:
        replays of a CUDA graph use memory that was taken when it was recorded. Counts where it is more than the
        allocator's figure.
    devices:
        That this rank keeps busy by itself: more than one where it spreads its work, as ``nn.DataParallel`` does.
    figures:
        Asked once after timing, for figures that only the step knows: stored and shown beside the metrics, never
        judged. Those of rank 0 are kept.
    """

    run: Callable[[], Tensor | None]
    samples: int
    tokens: int | None = None
    flops: float | None = None
    counts_flops: bool = True
    dtype: str = "fp32"
    parameters: Callable[[], Iterable[Tensor]]
    replicated: bool = False
    trains: bool = True
    period: int = 1
    eager_steps: int = 0
    peak_bytes: Callable[[], int] | None = None
    devices: int = 1
    figures: Callable[[], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is unknown; known: {', '.join(DTYPES)}")
        if self.period < 1:
            raise ValueError(f"the work repeats after one step or more, not {self.period!r}")
        if self.eager_steps != 0 and self.eager_steps < 2:
            raise ValueError(
                f"a step is recorded after two steps or more, or never (0), not after {self.eager_steps!r}"
            )
        if self.devices < 1:
            raise ValueError(f"a rank keeps at least one device busy, not {self.devices!r}")
        if self.samples < 1 or (self.tokens is not None and self.tokens < 1):
            raise ValueError(f"a step needs at least one sample and one token: {self.samples}, {self.tokens}")
        if self.flops is not None and not self.flops > 0:
            raise ValueError(f"FLOPs of a step must be above 0, or None where unknown: {self.flops!r}")
