"""Data parallelism over eleven models: how plain DDP scales, and how much faster its accelerated variants are.

Run a part of it: ``pytest bench_tests -k "ddp_scaling and resnet50" --hw h200``. By default plain DDP runs on one to
eight devices, and the accelerated variants run on four devices with the published batches. ``--grid full`` runs the
variants on all meshes with all batches. ``--grid published`` runs all strategies on whole nodes of eight devices with
the published batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from bench_tests.strategies import DATA_PARALLEL, PLAIN_DDP
from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape, Plan
from pytest_trainbench.hardware.resolve import Hardware


@dataclass(frozen=True, kw_only=True)
class Work:
    """One model trained by one strategy, both by the names of their registries.

    ``micro_batch`` is the number of samples a rank takes, and ``batch`` is the name of that size. ``sample`` holds the
    parameters that define one sample.
    """

    model: str
    strategy: str
    batch: str
    micro_batch: int
    sample: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.model}-{self.strategy}-{self.batch}"


SEED: dict[str, tuple[int, int, dict[str, Any]]] = {
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
"""Model -> (published samples a device, samples that saturate an H200 even though its host waits, definition of a
sample)."""

SATURATED_GB = 48
"""Device memory, in marketed GB, that the largest saturating batch needs: the process took 41 GB on an H200."""

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
"""Small variant of each model -> (samples a device, definition of a sample)."""

ACCELERATED_MODEL = "timm_vision_transformer"


Cases = Sequence[tuple[Work, str]]
"""Pairs of work and mesh."""


def cases(*, plain: Sequence[str], accelerated: Sequence[str], batches: Sequence[str]) -> Cases:
    """Every model with these ``batches``: plain DDP on the meshes ``plain``, the accelerated variants on
    ``accelerated``."""
    return [
        (Work(model=model, strategy=strategy, batch=batch, micro_batch=micro_batch, sample=sample), mesh)
        for model, (seed, saturating, sample) in SEED.items()
        for batch, micro_batch in (("seed", seed), ("saturating", saturating))
        if batch in batches
        for strategy in DATA_PARALLEL
        for mesh in (plain if strategy == PLAIN_DDP else accelerated)
    ]


ONE_NODE = ("dp1", "dp2", "dp4", "dp8")
GRIDS = {
    "headline": [
        *cases(plain=ONE_NODE, accelerated=("dp4",), batches=("seed",)),
        *cases(plain=ONE_NODE, accelerated=(), batches=("saturating",)),
    ],
    "full": cases(plain=ONE_NODE, accelerated=ONE_NODE[1:], batches=("seed", "saturating")),
    "published": cases(plain=("dp8", "dp16"), accelerated=("dp8", "dp16"), batches=("seed",)),
}


def smoke() -> Cases:
    """Plain DDP on every model, and the accelerated variants on one model.

    That one model also runs on one device, so that the tables have a baseline for scaling. Compiled strategies are left
    out, because they take longer to compile than all other smoke cases take together.
    """
    return [
        (Work(model=f"{model}-tiny", strategy=strategy, batch="seed", micro_batch=micro_batch, sample=sample), mesh)
        for model, (micro_batch, sample) in SMOKE.items()
        for strategy in (DATA_PARALLEL if model == ACCELERATED_MODEL else [PLAIN_DDP])
        if not strategy.startswith("compiled")
        for mesh in (("dp1", "dp2") if (model, strategy) == (ACCELERATED_MODEL, PLAIN_DDP) else ("dp2",))
    ]


@pytest.mark.profiles(**{"work,mesh": {"smoke": smoke(), "seed": GRIDS}})
def test_ddp_scaling(
    bench: Callable[..., object], work: Work, mesh: MeshShape, hardware: Hardware, amp: str, plan: Plan | None
) -> None:
    """Every strategy trains like one process that takes the ranks' batches one after another, within the row's
    tolerance."""
    if work.batch == "saturating" and (hardware.accelerator is None or hardware.accelerator.memory_gb < SATURATED_GB):
        pytest.skip(f"the saturating batches need a device with {SATURATED_GB} GB, and {hardware.device_name} has less")
    row = DATA_PARALLEL[work.strategy]
    if missing := row.missing(hardware.kind, amp):
        pytest.skip(missing)
    bench(
        "bench_tests.steps.train:train_step",
        mesh=mesh,
        plan=plan,
        reference={"strategy": "reference", "micro_batches": mesh.dp},
        model=work.model,
        strategy=work.strategy,
        precision=amp,
        micro_batch=work.micro_batch,
        **tolerance(work.strategy, work.model.removesuffix("-tiny")).options,
        **work.sample,
    )
