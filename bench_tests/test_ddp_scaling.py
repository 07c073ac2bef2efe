"""Data parallelism: how plain DDP scales, and what faster kinds of it give, over eleven models.

Run a part of it: ``pytest bench_tests -k "ddp_scaling and resnet50" --hw h200``. Accelerated kinds run on four devices;
``-m "wide or not wide"`` adds two and eight, and sixteen for plain DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from bench_tests.strategies import ACCELERATORS, DATA_PARALLEL, PLAIN_DDP
from pytest_trainbench import MeshShape, Plan


@dataclass(frozen=True, kw_only=True)
class Work:
    """``model`` trained by ``strategy``, as both are called in their registries; ``batch`` is a name for
    ``micro_batch`` samples a rank, ``sample`` says what one is."""

    model: str
    strategy: str
    batch: str
    micro_batch: int
    sample: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.model}-{self.strategy}-{self.batch}"


SEED = {
    "alexnet": (128, 2048, {"image": 224}),
    "resnet18": (16, 1024, {"image": 224}),
    "resnet50": (32, 512, {"image": 224}),
    "vgg16": (64, 512, {"image": 224}),
    "timm_vovnet": (32, 256, {"image": 224}),
    "timm_vision_transformer": (8, 512, {"image": 224}),
    "pytorch_unet": (1, 16, {"image": [640, 959]}),
    "hf_Bart": (4, 64, {"sequence": 512}),
    "hf_Bert": (4, 64, {"sequence": 512}),
    "speech_transformer": (32, 512, {"frames": 160, "symbols": 15}),
    "tts_angular": (64, 4096, {"frames": 50}),
}
"""Model -> samples a device as published, samples that fill a device with 140 GB, and what a sample is."""

SMOKE: dict[str, tuple[int, dict[str, Any]]] = {
    "alexnet": (4, {"image": 64}),
    "resnet18": (4, {"image": 32}),
    "resnet50": (4, {"image": 32}),
    "vgg16": (4, {"image": 32}),
    "timm_vovnet": (4, {"image": 64}),
    "timm_vision_transformer": (4, {"image": 32}),
    "pytorch_unet": (1, {"image": [48, 71]}),
    "hf_Bart": (2, {"sequence": 32}),
    "hf_Bert": (2, {"sequence": 32}),
    "speech_transformer": (4, {"frames": 32, "symbols": 7}),
    "tts_angular": (8, {"frames": 10}),
}
"""The small relatives."""


def seed() -> Sequence[Any]:
    """Pairs of work and mesh."""
    rows: list[Any] = []
    for model, (published, saturating, sample) in SEED.items():
        for batch, micro_batch in (("seed", published), ("saturating", saturating)):
            for strategy in DATA_PARALLEL:
                work = Work(model=model, strategy=strategy, batch=batch, micro_batch=micro_batch, sample=sample)
                plain = strategy == PLAIN_DDP
                rows += [(work, mesh) for mesh in (("dp1", "dp2", "dp4", "dp8") if plain else ("dp4",))]
                wide = ("dp16",) if plain else ("dp2", "dp8")
                rows += [pytest.param(work, mesh, marks=pytest.mark.wide) for mesh in wide]
    return rows


def smoke() -> Sequence[Any]:
    rows = []
    for model, (micro_batch, sample) in SMOKE.items():
        # Compiling takes longer than all else here together.
        accelerators = [name for name in ACCELERATORS if model == "resnet18" and name != "compiled-ddp"]
        for strategy in (PLAIN_DDP, *accelerators):
            work = Work(
                model=f"{model}-tiny", strategy=strategy, batch="seed", micro_batch=micro_batch, sample=sample
            )
            rows.append((work, "dp2"))
    return rows


@pytest.mark.profiles(**{"work,mesh": {"smoke": smoke(), "seed": seed()}})
def test_ddp_scaling(bench: Callable[..., object], work: Work, mesh: MeshShape, amp: str, plan: Plan | None) -> None:
    """Whatever makes it faster, it trains as one process does that takes the ranks' batches one after another."""
    bench(
        "bench_tests.training:train_step",
        mesh=mesh,
        plan=plan,
        reference={"strategy": "reference", "micro_batches": mesh.dp},
        loss_tolerance=DATA_PARALLEL[work.strategy].loss_tolerance,
        model=work.model,
        strategy=work.strategy,
        precision=amp,
        micro_batch=work.micro_batch,
        **work.sample,
    )
