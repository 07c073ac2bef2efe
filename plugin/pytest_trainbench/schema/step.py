"""The interface between the plugin and the benchmarked code: what a step builder returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Number formats of a matrix product's inputs. The device's dense peak, and so MFU, depends on the format."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimisation step of a model, on one rank.

    run:
        Does one whole step (forward, backward, optimizer). Returns this rank's loss as a detached scalar tensor on its
        device, or ``None`` on a rank without a loss (a pipeline stage other than the last). ``run`` must neither
        synchronise with the device nor call ``.item()``, because the wait would be measured. Losses are read after the
        last step. If the next step writes its loss to the same memory (a replay of a CUDA graph), return a clone.
    samples, tokens:
        Samples and tokens of one step on *all* ranks together.
    flops:
        Floating-point operations of one step on all ranks together, by formula. A multiply-add counts as two. ``None``
        if no formula is known.
    counts_flops:
        Whether ``torch.utils.flop_counter`` sees each operation of the formula exactly once in ``run``. The plugin then
        compares the two. False if the counter cannot see the work (compiled regions), or sees more than the model's
        work (recomputation).
    dtype:
        Number format of the step's matrix products, one of :data:`DTYPES`.
    parameters:
        Returns the tensors that training must change, or this rank's shards of them. With ``trains=False`` it returns
        the tensors that ``run`` writes.
    replicated:
        Whether ``parameters`` must be equal, bit for bit, on ranks that differ only in their data-parallel
        position.
    trains:
        False for a part of a step, such as one layer or one product. Then ``run`` may return ``None`` on every rank,
        and the loss need not fall.
    period:
        Number of steps after which the work repeats, if not every step does the same. Counts are averages over this
        many steps.
    eager_steps:
        Number of eager steps before a step is recorded as a CUDA graph; all later steps are replays. 0 if no step is
        recorded. Eager steps and the recording are never timed. Collectives are counted in the last eager step, because
        a replay makes no calls from Python.
    peak_bytes:
        Called after timing. Returns the most bytes that a step has allocated. Set it if the device's allocator cannot
        see them: a replay of a CUDA graph uses memory that its recording took. The larger of this figure and the
        allocator's counts.
    devices:
        Number of devices that this rank drives by itself; more than one with ``nn.DataParallel``.
    figures:
        Called once after timing. Returns figures that only the step knows. The figures of rank 0 are stored and shown
        beside the metrics and never judged.

    Raises ``ValueError`` for an unknown ``dtype`` and for numbers that cannot be.
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
            raise ValueError(f"period must be at least 1 step, not {self.period!r}")
        if self.eager_steps != 0 and self.eager_steps < 2:
            raise ValueError(f"eager_steps must be 0 (nothing is recorded) or at least 2, not {self.eager_steps!r}")
        if self.devices < 1:
            raise ValueError(f"devices must be at least 1, not {self.devices!r}")
        if self.samples < 1 or (self.tokens is not None and self.tokens < 1):
            raise ValueError(
                f"samples must be at least 1, and tokens at least 1 or None, not {self.samples!r} and {self.tokens!r}"
            )
        if self.flops is not None and not self.flops > 0:
            raise ValueError(f"flops must be above 0, or None if no formula is known, not {self.flops!r}")
