"""Steps of the suite for machines without a CUDA device. A replay runs the recorded Python code again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from bench_tests.steps.parallel import parallel_step
from bench_tests.steps.train import train_step
from bench_tests.strategies import recorded
from pytest_trainbench import Step


class Again:
    """A stand-in for :class:`bench_tests.training.cuda_graph.Recording`. It also reads the tensors that existed when it
    was made, and writes every result to the same tensor."""

    peak_bytes = 1_000_000

    def __init__(self, once: Callable[[], Any]) -> None:
        self.once = once
        self.result: Any = None

    def replay(self) -> None:
        found = self.once()
        self.result = found if self.result is None else self.result.copy_(found)


def train(mesh: DeviceMesh, **params: Any) -> Step:
    recorded.Recording = Again  # type: ignore[assignment,misc]
    return train_step(mesh, **params)


def split(mesh: DeviceMesh, **params: Any) -> Step:
    recorded.Recording = Again  # type: ignore[assignment,misc]
    return parallel_step(mesh, **params)
