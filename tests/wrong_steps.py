"""Mistakes that train without a word, planted on purpose."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from bench_tests.strategies import fairscale
from bench_tests.training import train_step
from pytest_trainbench import Step


def sharded_ddp_with_stale_gradients(mesh: DeviceMesh, **params: Any) -> Step:
    """FairScale's ShardedDataParallel with the optimizer's own ``zero_grad``."""
    right = fairscale.step
    fairscale.step = lambda *args, zero_grad, **options: right(*args, **options)  # type: ignore[assignment]
    return train_step(mesh, strategy="oss-sdp", **params)
