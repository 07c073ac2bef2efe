"""TFLOPS of single transformer layers, and TFLOPS of the matrix and vector products that layers consist of.

Run a part of it: ``pytest bench_tests -k "layer and bert" --hw h200``. ``--grid full`` runs every published batch and
sequence. ``--grid published`` runs the same shapes with the published set-up: eager attention, fp16 and the published
FLOP counting.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench_tests.layers import MODES, find_mode
from bench_tests.layers.grid import LayerPass, full, headline, published, smoke
from pytest_trainbench import MeshShape, Plan
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.schema.step import DTYPES

pytestmark = pytest.mark.mesh(dp=1)

DIMENSIONS = {
    "smoke": {"hidden": 64, "heads": 2, "ffn": 256},
    "seed": {"hidden": 1024, "heads": 16, "ffn": 4096},
}
"""The layers of BERT-large, GPT-2-medium and T5-large all have the ``seed`` dimensions."""

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
"""Three 16-bit vectors of the smallest seed size take 400 MB. No device in the hardware table has a cache that large.
"""


# All products of a layer have aligned sizes, so Inductor has no padding to benchmark. Two machines with H200s therefore
# ran the same kernels in all compiled rows.
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
    run: LayerPass,
) -> None:
    """A layer runs the FLOPs that its formula counts, as fast as before."""
    if find_mode(run.mode).graphed and hardware.kind != "cuda":
        pytest.skip(f"CUDA graphs need a CUDA device, and {hardware.device_name} is not one")
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
    """One large matrix product in each number format that the device supports: the upper bound for a layer's TFLOPS."""
    _skip_without(hardware, precision)
    bench("bench_tests.steps.layer:matrix_product", mesh=mesh, plan=plan, precision=precision, size=size)


@pytest.mark.profiles(size=VECTOR_SIZES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_vector_product(
    bench: Callable[..., object], mesh: MeshShape, plan: Plan | None, hardware: Hardware, precision: str, size: int
) -> None:
    """One element-wise product: its memory bandwidth limits everything in a layer that is not a matrix product."""
    _skip_without(hardware, precision)
    bench("bench_tests.steps.layer:vector_product", mesh=mesh, plan=plan, precision=precision, size=size)


def _skip_without(hardware: Hardware, dtype: str) -> None:
    """Skip a number format that the device does not support.

    A CPU may run fp8: it multiplies single fp8 matrices, slowly, although no model trains in fp8 there.
    """
    if not hardware.has(dtype) and (hardware.kind, dtype) != ("cpu", "fp8"):
        pytest.skip(f"{hardware.device_name} has no hardware for {dtype} products")
