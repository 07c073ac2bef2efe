"""Masked-LM pre-training through transformers' ``Trainer``: time to train and time to evaluate.

Run a part of it: ``pytest bench_tests -k "trainer and bf16 and dp4" --hw h200``. ``--grid full`` runs every published
batch. See docs/trainer.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench_tests.tolerances import tolerance
from pytest_trainbench import MeshShape
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.schema.plan import Plan

BATCHES = {"smoke": [2], "seed": {"headline": [8], "full": [4, 8, 16], "published": [4, 8, 16]}}
"""Samples a device."""

WORK = {
    "smoke": {"model": "deberta-tiny", "sequence": 16},
    "seed": {"model": "deberta-v3-base", "sequence": 512},
}
ACCUMULATION = {"smoke": 2, "seed": 4}
TRAIN_SAMPLES = {"smoke": 32, "seed": 2048}
EVAL_SAMPLES = {"smoke": 16, "seed": 1024}
EPOCHS = 2

LEVERS: dict[str, dict[str, Any]] = {"checkpointing": {"checkpointing": True}, "no-accumulation": {"accumulation": 1}}
"""The published advice that no other row covers, as parameters of a training. The grids already have rows for larger
batches, 16-bit formats, compiled kernels and more devices."""


@pytest.fixture
def precision(request: pytest.FixtureRequest, hardware: Hardware) -> str:
    """The number format that a test's parameter stands for. Skips the test if the device or ``Trainer`` does not
    support it."""
    if request.param == "full":
        return hardware.full
    if request.param == "fp16" and hardware.kind == "cpu":
        pytest.skip("Trainer does not support fp16 on a CPU")
    if request.param == "bf16" and hardware.amp != "bf16":
        pytest.skip(f"{hardware.device_name} does not support bf16")
    return str(request.param)


@pytest.fixture
def reports(request: pytest.FixtureRequest) -> dict[str, str]:
    """The parameter that ``--report-to`` adds to a training. A training that reports is a case of its own."""
    report_to = request.config.getoption("--report-to")
    return {} if report_to == "none" else {"report_to": report_to}


def train(profile: str, ranks: int, **levers: Any) -> dict[str, Any]:
    """Parameters of a training, and of its reference on a single rank.

    The reference accumulates the batches of all ranks. ``levers`` replace parameters of the training. The reference
    always runs without checkpointing.
    """
    accumulation = levers.get("accumulation", ACCUMULATION[profile])
    without = {"checkpointing": False} if "checkpointing" in levers else {}
    reference = {"accumulation": accumulation * ranks, "report_to": "none", **without}
    return {
        "builder": "bench_tests.steps.hf_trainer:trainer_train",
        "samples": TRAIN_SAMPLES[profile],
        "accumulation": accumulation,
        "reference": reference if ranks > 1 or without else None,
        **tolerance("trainer").options,
        **WORK[profile],
        **levers,
    }


def whole_run(profile: str, ranks: int) -> dict[str, Any]:
    """Parameters of :func:`train`, followed by a whole run of ``Trainer``."""
    work = train(profile, ranks)
    samples = work.pop("samples")
    return {
        **work,
        "builder": "bench_tests.steps.hf_trainer:trainer_run",
        "train_samples": samples,
        "eval_samples": EVAL_SAMPLES[profile],
        "epochs": EPOCHS,
    }


def evaluation(profile: str, ranks: int) -> dict[str, Any]:
    """Parameters of an evaluation. It has the same number of samples for any number of ranks."""
    return {
        "builder": "bench_tests.steps.hf_trainer:trainer_eval",
        "samples": EVAL_SAMPLES[profile],
        **WORK[profile],
    }


@pytest.mark.profiles(batch=BATCHES, mesh={"smoke": ["dp1", "dp2"], "seed": ["dp1", "dp2", "dp4"]})
@pytest.mark.parametrize("precision", ["full", "fp16", "bf16"], indirect=True)
def test_trainer_train(
    bench: Callable[..., object],
    mesh: MeshShape,
    profile: str,
    plan: Plan | None,
    precision: str,
    batch: int,
    reports: dict[str, str],
) -> None:
    """Distributed data parallelism trains like one rank that accumulates the batches of all ranks."""
    bench(mesh=mesh, plan=plan, precision=precision, batch=batch, **train(profile, mesh.dp), **reports)


@pytest.mark.mesh(dp=1)
@pytest.mark.profiles(lever={"smoke": ["checkpointing"], "seed": list(LEVERS)}, batch={"smoke": [2], "seed": [8]})
def test_trainer_lever(
    bench: Callable[..., object], mesh: MeshShape, profile: str, plan: Plan | None, amp: str, lever: str, batch: int
) -> None:
    """One lever differs from the same row of :func:`test_trainer_train`. Both rows form a pair for the table of single
    changes."""
    bench(mesh=mesh, plan=plan, precision=amp, batch=batch, **train(profile, mesh.dp, **LEVERS[lever]))


@pytest.mark.profiles(batch=BATCHES, mesh={"smoke": ["dp2"], "seed": ["dp1", "dp2", "dp4"]})
@pytest.mark.parametrize("precision", ["full", "fp16", "bf16"], indirect=True)
def test_trainer_eval(
    bench: Callable[..., object], mesh: MeshShape, profile: str, plan: Plan | None, precision: str, batch: int
) -> None:
    bench(mesh=mesh, plan=plan, precision=precision, batch=batch, **evaluation(profile, mesh.dp))


@pytest.mark.profiles(batch=BATCHES, mesh={"smoke": ["dp2"], "seed": ["dp1", "dp2", "dp4"]})
@pytest.mark.parametrize("precision", ["full", "fp16"], indirect=True)
def test_trainer_run(
    bench: Callable[..., object],
    mesh: MeshShape,
    profile: str,
    plan: Plan | None,
    precision: str,
    batch: int,
    reports: dict[str, str],
) -> None:
    """A whole run of two epochs with an evaluation after each. ``Trainer`` itself logs its figures."""
    bench(mesh=mesh, plan=plan, precision=precision, batch=batch, **whole_run(profile, mesh.dp), **reports)


@pytest.mark.profiles(batch=BATCHES, mesh={"smoke": ["dp2"], "seed": ["dp2", "dp4"]})
@pytest.mark.parametrize("precision", ["full", "fp16"], indirect=True)
@pytest.mark.parametrize("phase", ["train", "eval", "run"])
def test_trainer_data_parallel(
    bench: Callable[..., object],
    mesh: MeshShape,
    profile: str,
    plan: Plan | None,
    hardware: Hardware,
    phase: str,
    precision: str,
    batch: int,
) -> None:
    """``nn.DataParallel``, which ``Trainer`` uses in one process that sees several GPUs. ``mesh`` gives the number of
    GPUs."""
    if hardware.kind != "cuda":
        pytest.skip(f"nn.DataParallel needs {mesh.dp} GPUs, and this is a {hardware.kind} device")
    work = {"train": train, "eval": evaluation, "run": whole_run}[phase](profile, mesh.dp)
    if "reference" in work:
        work["reference"]["devices"] = 1
    bench(mesh=MeshShape(), devices=mesh.dp, plan=plan, precision=precision, batch=batch, **work)
