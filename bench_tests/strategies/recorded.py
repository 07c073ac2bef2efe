"""Another strategy or engine whose whole step is one CUDA graph, communication and optimizer included. Any host is fast
enough to launch one graph a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bench_tests.models.trainable import Trainable
from bench_tests.training.cuda_graph import Recording
from bench_tests.training.recipe import Recipe, Trainee


def recorded(
    model: Trainable, mesh: DeviceMesh, recipe: Recipe, *, of: str, eager_steps: int, **options: Any
) -> Trainee:
    """Another strategy or engine, recorded as a CUDA graph after ``eager_steps`` steps.

    ``of`` is the import path of its function (``package.module:function``), and ``options`` are its options. A
    recording contains what Python did in one step. No step may therefore depend on its number or wait for the device.
    Everything that a step creates (optimizer states, buckets, communicators) must exist after ``eager_steps`` steps.

    Raises ``ValueError`` for fp16, whose gradient scaler asks the device after each step for an overflow. Raises
    ``ValueError`` for a strategy whose steps are not all alike.
    """
    if recipe.dtype is torch.float16:
        raise ValueError("a CUDA graph cannot contain an fp16 step: the gradient scaler waits for the device")
    if recipe.device.type == "cuda":
        # All work must be issued to one stream, and this must not be the default stream. Backward and DDP's reducer use
        # the stream that was current during set-up.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(aside)
    eager: Trainee = resolve_name(of)(model, mesh, replace(recipe, recorded=True), **options)
    if eager.period > 1:
        raise ValueError(f"{of} cannot be recorded, because its steps are not all alike")
    run = Replayed(eager.run, eager_steps)
    return replace(eager, run=run, eager_steps=eager_steps, peak_bytes=run.peak_bytes)


class Replayed:
    """``run``, a :attr:`Trainee.run`, for ``eager_steps`` steps; then a recording of it that gets each new batch."""

    def __init__(self, run: Callable[..., Tensor | None], eager_steps: int) -> None:
        self.run = run
        self.eager_left = eager_steps
        self.batch: tuple[Tensor, ...] = ()
        self.recording: Recording[Tensor | None] | None = None

    def __call__(self, *batch: Tensor) -> Tensor | None:
        if self.eager_left:
            self.eager_left -= 1
            return self.run(*batch)
        if self.recording is None:
            self.batch = tuple(tensor.clone() for tensor in batch)
            self.recording = Recording(lambda: self.run(*self.batch))
        else:
            for kept, new in zip(self.batch, batch, strict=True):
                kept.copy_(new)
        self.recording.replay()
        loss = self.recording.result
        return None if loss is None else loss.clone()  # the next replay overwrites it

    def peak_bytes(self) -> int:
        return 0 if self.recording is None else self.recording.peak_bytes
