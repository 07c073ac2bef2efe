"""TFLOPS of single transformer layers, beside those of the products that they are made of.

``pytest bench_tests -k "layer and bert" --hw h200``. ``--grid full`` runs every published batch and sequence,
``--grid published`` the same the way it was published: eager attention, fp16, and its counting.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench_tests.layers import MODES, find_mode
from bench_tests.layers.grid import Run, full, headline, published, smoke
from pytest_trainbench import MeshShape, Plan
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.schema.step import DTYPES

pytestmark = pytest.mark.mesh(dp=1)

DIMENSIONS = {
    "smoke": {"hidden": 64, "heads": 2, "ffn": 256},
    "seed": {"hidden": 1024, "heads": 16, "ffn": 4096},
}
"""seed: BERT-large, GPT-2-medium and T5-large have layers of one size."""

RUNS = {
    "smoke": smoke(),
    "seed": {
        "headline": headline(["eager", "sdpa", "compiled"]),
        "full": full(MODES),
        "published": published(),
    },
}

MATRIX_SIZES = {
    "smoke": [128],
    "seed": {
        "headline": [4096, 8192],
        "full": [2048, 4096, 8192, 16384],
        "published": [2048, 4096, 8192, 16384],
    },
}

VECTOR_SIZES = {
    "smoke": [2**18],
    "seed": {
        "headline": [2**28],
        "full": [2**26, 2**27, 2**28],
        "published": [2**26, 2**27, 2**28],
    },
}
"""seed: three vectors of the smallest in 16 bits are 400 MB, more than a device of the hardware table has of cache."""


# Every product of a layer has aligned sizes, so that Inductor has no padding to time: the kernels of all compiled rows
# were the same on two machines with H200s.
@pytest.mark.gate("kernels", generated=False)
@pytest.mark.profiles(run=RUNS)
def test_layer(
    bench: Callable[..., object],
    mesh: MeshShape,
    profile: str,
    plan: Plan | None,
    hardware: Hardware,
    amp: str,
    grid: str,
    run: Run,
) -> None:
    """A layer computes what it is counted for, as fast as before."""
    if find_mode(run.mode).graphed and hardware.kind != "cuda":
        pytest.skip(f"CUDA graphs need a CUDA device, and {hardware.device_name} is none")
    bench(
        "bench_tests.steps.layer:layer_pass",
        mesh=mesh,
        plan=plan,
        precision="fp16" if grid == "published" else amp,
        **run._asdict(),
        **DIMENSIONS[profile],
    )


@pytest.mark.profiles(size=MATRIX_SIZES)
@pytest.mark.parametrize("precision", DTYPES)
def test_matrix_product(
    bench: Callable[..., object], mesh: MeshShape, plan: Plan | None, hardware: Hardware, precision: str, size: int
) -> None:
    """The most that a layer could reach: one large product in each number format that the device has."""
    _skip_without(hardware, precision)
    bench("bench_tests.steps.layer:matrix_product", mesh=mesh, plan=plan, precision=precision, size=size)


@pytest.mark.profiles(size=VECTOR_SIZES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_vector_product(
    bench: Callable[..., object], mesh: MeshShape, plan: Plan | None, hardware: Hardware, precision: str, size: int
) -> None:
    """Memory bandwidth, which everything in a layer that is no matrix product lives on."""
    _skip_without(hardware, precision)
    bench("bench_tests.steps.layer:vector_product", mesh=mesh, plan=plan, precision=precision, size=size)


def _skip_without(hardware: Hardware, dtype: str) -> None:
    """A CPU multiplies single fp8 matrices too, if slowly, though nothing trains in them there."""
    if not hardware.has(dtype) and (hardware.kind, dtype) != ("cpu", "fp8"):
        pytest.skip(f"{hardware.device_name} has no {dtype} products")
