"""What all strategies have in common, so that little more than the sharding differs between rows.

DDP, OSS and ShardedDDP train fp32 weights under autocast. FSDP and DeepSpeed train a 16-bit copy of fp32 weights. Users
of these libraries do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, all_reduce
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LinearLR

PRECISIONS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Number format of the matrix products -> type of the tensors that go into them."""

FORMATS = {**PRECISIONS, "fp8": torch.bfloat16}
""":data:`PRECISIONS`, and fp8 for training under a strategy. With fp8 the linear layers of the blocks round their bf16
inputs further (see :mod:`bench_tests.models.float8`); everything else is bf16."""

LOSS_SCALE_POWER = 12
"""The loss scale of fp16 starts at this power of two. torch starts at 16. At that scale the gradients of a small BERT
overflow, so the scaler skips the step, and the loss of that step tells nothing about the training."""

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train, independent of the strategy.

    ``precision`` is a key of :data:`FORMATS`. ``learning_rate`` applies from step ``warmup_steps`` on; before that step
    the rate rises linearly. ``recorded`` tells the optimizer that its steps will be part of a CUDA graph (see
    :mod:`bench_tests.strategies.recorded`). Raises ``ValueError`` for an unknown precision.
    """

    precision: str
    learning_rate: float
    device: torch.device
    warmup_steps: int = 1
    recorded: bool = False

    def __post_init__(self) -> None:
        if self.precision not in FORMATS:
            raise ValueError(f"precision {self.precision!r} is unknown; known: {', '.join(FORMATS)}")

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensors that go into matrix products."""
        return FORMATS[self.precision]

    @property
    def mixed(self) -> bool:
        """Whether matrix products take 16-bit numbers. Parameters and optimizer states are fp32 in any case."""
        return self.dtype is not torch.float32

    @property
    def adamw_options(self) -> dict[str, Any]:
        options = {"lr": self.learning_rate, "betas": BETAS, "weight_decay": WEIGHT_DECAY, "fused": True}
        return {**options, "capturable": True} if self.recorded else options

    def adamw(self, parameters: Iterable[Tensor]) -> AdamW:
        optimizer = AdamW(parameters, **self.adamw_options)
        if self.warmup_steps > 1:
            rising = LinearLR(optimizer, start_factor=1 / self.warmup_steps, total_iters=self.warmup_steps - 1)
            optimizer.register_step_post_hook(lambda *_: rising.step())
        return optimizer

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, self.dtype) if self.mixed else nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        """A scaler for the loss of fp16. It does nothing in other formats."""
        return torch.amp.GradScaler(
            self.device.type, init_scale=2.0**LOSS_SCALE_POWER, enabled=self.dtype is torch.float16
        )

    def sharded_scaler(self, group: ProcessGroup) -> ShardedScaler:
        """:meth:`scaler` for ranks that see only their own shard of the gradients."""
        return ShardedScaler(self.device.type, group, enabled=self.dtype is torch.float16)


class ShardedScaler(torch.amp.GradScaler):
    """A gradient scaler that skips a step on all ranks if one rank must skip it.

    The scalers of torch.distributed.fsdp and FairScale do this too. But their shared flag has a shape that fused
    optimizers refuse, and FairScale's scaler disables itself without a GPU.
    """

    def __init__(self, device_type: str, group: ProcessGroup, *, enabled: bool) -> None:
        super().__init__(device_type, init_scale=2.0**LOSS_SCALE_POWER, enabled=enabled)
        self.group = group

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        # Without this call a fused optimizer would look for infinities in its own shard only.
        self.unscale_(optimizer)
        if self.is_enabled():
            for found_inf in self._found_inf_per_device(optimizer).values():
                all_reduce(found_inf, ReduceOp.MAX, self.group)
        return super().step(optimizer, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """A model under a strategy.

    ``run`` does one optimisation step on this rank's batch (tensors of shape samples × …). It returns the step's loss,
    a detached scalar on the device, or ``None`` if the model does not end on this rank. ``parameters`` returns what
    this rank holds of the model. If ``replicated``, it is equal on all ranks that differ only in their data-parallel
    position. ``counts_flops``, ``period``, ``eager_steps`` and ``peak_bytes`` are fields of
    :class:`pytest_trainbench.Step`.
    """

    run: Callable[..., Tensor | None]
    parameters: Callable[[], Iterable[Tensor]]
    replicated: bool
    counts_flops: bool = True
    period: int = 1
    eager_steps: int = 0
    peak_bytes: Callable[[], int] | None = None


def step(
    loss_of: Callable[..., Tensor],
    optimizer: Optimizer,
    *,
    scaler: torch.amp.GradScaler,
    autocast: AbstractContextManager[object] | None = None,
    zero_grad: Callable[[], None] | None = None,
) -> Callable[..., Tensor]:
    """A :attr:`Trainee.run`: forward, backward, update. It frees the gradients before the next forward pass needs
    memory."""
    autocast = autocast or nullcontext()
    zero_grad = zero_grad or optimizer.zero_grad

    def run(*batch: Tensor) -> Tensor:
        with autocast:
            loss = loss_of(*batch)
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        zero_grad()
        return loss.detach()

    return run
