"""Another strategy or engine whose whole step, communication and optimizer included, is one CUDA graph: any host is
quick enough to launch one thing a step."""

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
    """The strategy or engine of function ``of`` (``package.module:function``), with its ``options``, recorded after so
    many steps.

    A recording holds what Python did once: nothing in a step may depend on which step it is, or wait for the device.
    Enough steps come first when all that is made on the way exists (optimizer states, buckets, communicators).

    Raises ``ValueError`` for fp16, whose gradient scaler asks the device after each step whether it overflowed, and for
    a strategy whose steps are not all alike.
    """
    if recipe.dtype is torch.float16:
        raise ValueError("a step in fp16 cannot be recorded: its gradient scaler waits for the device")
    if recipe.device.type == "cuda":
        # All of it has to be issued to one stream, and not to the default one: backward, and DDP's reducer, keep to the
        # stream that the strategy was set up on.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(aside)
    eager: Trainee = resolve_name(of)(model, mesh, replace(recipe, recorded=True), **options)
    if eager.period > 1:
        raise ValueError(f"{of} does not do the same in every step, and one recording is replayed for all")
    run = Replayed(eager.run, eager_steps)
    return replace(eager, run=run, eager_steps=eager_steps, peak_bytes=run.peak_bytes)


class Replayed:
    """``run``, a :attr:`Trainee.run`, as it is for ``eager_steps``; from then on its recording, fed with each batch."""

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
        return None if loss is None else loss.clone()  # the next replay writes to it again

    def peak_bytes(self) -> int:
        return 0 if self.recording is None else self.recording.peak_bytes
