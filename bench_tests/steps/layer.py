"""Step builders without training: one layer, one matrix product or one element-wise product, on one device.

A pass that is too short to time is repeated within a step; see :func:`repeats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench_tests.layers import COUNTINGS, DIRECTIONS, find_layer, find_mode
from bench_tests.layers.transformer import TransformerLayer
from bench_tests.training.cuda_graph import Recording
from bench_tests.training.recipe import PRECISIONS
from pytest_trainbench import Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SEED = 1234
"""Seed of weights and data."""

LEAST_FLOPS, LEAST_BYTES, LEAST_ON_A_CPU = 1e13, 5e10, 1e6
"""The least work of a step; see :func:`repeats`."""


def layer_pass(
    mesh: DeviceMesh,
    *,
    layer: str,
    direction: str,
    mode: str,
    precision: str,
    batch: int,
    sequence: int,
    hidden: int,
    heads: int,
    ffn: int,
    counting: str = "exact",
) -> Step:
    """Passes of one layer with weights in ``precision`` over random states.

    :mod:`bench_tests.layers` defines the values of ``layer``, ``mode``, ``direction`` and ``counting``. Backward starts
    from a random gradient of the output. The gradients of weights and inputs replace the gradients of the previous
    pass. Raises ``ValueError`` for an unknown name or an impossible combination.
    """
    row, how, device = find_layer(layer), find_mode(mode), _device(mesh)
    _choose("direction", direction, DIRECTIONS)
    _choose("counting", counting, COUNTINGS)
    _choose("precision", precision, PRECISIONS)
    if counting == "published" and direction == "fwd":
        raise ValueError("counting 'published' needs a backward pass, and direction 'fwd' has none: use 'fwd_bwd'")
    if how.graphed and device.type != "cuda":
        raise ValueError(f"mode {mode!r} needs a CUDA device, and this one is a {device.type}")

    _set_products(precision)
    torch.manual_seed(SEED)
    with device:
        module = row.build(hidden=hidden, heads=heads, ffn=ffn, sequence=sequence, attention=how.attention)
        module = module.to(PRECISIONS[precision])
        states = torch.randn(module.sources, batch, sequence, hidden, dtype=PRECISIONS[precision]).unbind()
    run_layer: Callable[..., Tensor] = torch.compile(module, dynamic=False, fullgraph=True) if how.compiled else module
    forward_flops = row.forward_flops(samples=batch, sequence=sequence, hidden=hidden, ffn=ffn)
    if direction == "fwd":
        once, written = _forward(run_layer, states)
        flops = forward_flops
    else:
        once, written = _forward_backward(module, run_layer, states, inputs_too=counting == "exact")
        flops = 3 * forward_flops
    recording = _recorded(once, written) if how.graphed else None
    count = repeats(flops, device.type, least=LEAST_FLOPS)
    return Step(
        run=_repeated(recording.replay if recording else once, count),
        trains=False,
        samples=batch * count,
        tokens=batch * sequence * count,
        flops=flops * count,
        # The FLOP counter sees neither compiled code nor a CUDA graph. It also misses the products that published
        # counting adds.
        counts_flops=not (how.compiled or how.graphed) and counting == "exact",
        dtype=precision,
        parameters=lambda: written,
        figures=lambda: _figures(written, passes_per_step=count),
        peak_bytes=lambda: recording.peak_bytes if recording else 0,
    )


def matrix_product(mesh: DeviceMesh, *, precision: str, size: int) -> Step:
    """Products of two square matrices of size ``size`` with normally distributed numbers.

    In fp8 the inputs are e4m3, the output is bf16, and the accumulation is fp32, like the peaks in the hardware table.
    Raises ``ValueError`` for an unknown number format.
    """
    formats = {**PRECISIONS, "fp8": torch.float8_e4m3fn}
    _choose("precision", precision, formats)
    device = _device(mesh)
    _set_products(precision)
    torch.manual_seed(SEED)
    left, right = (matrix.to(formats[precision]) for matrix in torch.randn(2, size, size, device=device))
    if precision == "fp8":
        product = torch.zeros(size, size, dtype=torch.bfloat16, device=device)
        right, one = right.t(), torch.ones((), device=device)  # fp8 kernels need the right matrix in column-major order

        def once() -> None:
            torch._scaled_mm(left, right, one, one, out_dtype=product.dtype, out=product)
    else:
        product = torch.zeros_like(left)

        def once() -> None:
            torch.mm(left, right, out=product)

    flops = 2.0 * size**3
    count = repeats(flops, device.type, least=LEAST_FLOPS)
    return Step(
        run=_repeated(once, count),
        trains=False,
        samples=count,
        flops=flops * count,
        dtype=precision,
        parameters=lambda: [product],
        figures=lambda: _figures([product], passes_per_step=count),
    )


def vector_product(mesh: DeviceMesh, *, precision: str, size: int) -> Step:
    """Element-wise products of two vectors of ``size`` numbers: one operation for three numbers moved.

    ``figure.bytes_per_step`` is the memory traffic without any cache: two vectors read, one written. Raises
    ``ValueError`` for an unknown number format.
    """
    _choose("precision", precision, PRECISIONS)
    device = _device(mesh)
    torch.manual_seed(SEED)
    left, right = (vector.to(PRECISIONS[precision]) for vector in torch.randn(2, size, device=device))
    product = torch.zeros_like(left)
    moved = 3 * product.nbytes
    count = repeats(moved, device.type, least=LEAST_BYTES)
    return Step(
        run=_repeated(lambda: torch.mul(left, right, out=product), count),
        trains=False,
        samples=count,
        flops=float(size * count),
        counts_flops=False,  # the FLOP counter counts matrix products only
        dtype=precision,
        parameters=lambda: [product],
        figures=lambda: _figures([product], passes_per_step=count, bytes_per_step=moved * count),
    )


def repeats(amount: float, device_type: str, *, least: float) -> int:
    """How often a step repeats a pass with ``amount`` of work, so that the step does ``least`` work.

    With this length the steps of a plan fill its window. A short window would mislead: a device clocks down only after
    some time at its power cap, and its energy counter is imprecise below one second. An H200 takes 10 ms or more for
    10¹³ FLOPs or 5·10¹⁰ bytes (5 ms in fp8); a V100 takes 0.7 s in fp32. A CPU is slower, so 10⁶ of either are enough
    there.
    """
    return max(1, math.ceil((LEAST_ON_A_CPU if device_type == "cpu" else least) / amount))


def _forward(run_layer: Callable[..., Tensor], states: Sequence[Tensor]) -> tuple[Callable[[], None], list[Tensor]]:
    written = [torch.zeros_like(states[0])]

    @torch.no_grad()
    def once() -> None:
        written[:] = [run_layer(*states)]

    return once, written


def _forward_backward(
    module: TransformerLayer, run_layer: Callable[..., Tensor], states: Sequence[Tensor], *, inputs_too: bool
) -> tuple[Callable[[], None], list[Tensor]]:
    wanted: list[Tensor] = list(module.parameters())
    if inputs_too:
        wanted += [tensor.requires_grad_() for tensor in states]
    above = torch.randn_like(states[0])
    written = [torch.zeros_like(tensor) for tensor in wanted]

    def once() -> None:
        for tensor in wanted:
            tensor.grad = None  # otherwise the new gradient would be added, unlike in a step that clears gradients
        torch.autograd.backward(run_layer(*states), above)
        written[:] = [tensor.grad for tensor in wanted if tensor.grad is not None]

    return once, written


def _recorded(once: Callable[[], None], written: list[Tensor]) -> Recording[None]:
    """A recording of ``once``. A replay overwrites ``written``."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(aside)
    recording = Recording(once)
    for tensor in written:
        tensor.zero_()  # recording runs nothing, so these tensors hold uninitialised memory
    return recording


def _repeated(once: Callable[[], object], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            once()

    return run


def _set_products(precision: str) -> None:
    """Set the process-wide switch for TF32. The type of each tensor decides about the other formats."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def _device(mesh: DeviceMesh) -> torch.device:
    """The rank's own device with its index. Raises ``ValueError`` for a mesh of several devices."""
    if mesh.size() != 1:
        raise ValueError(f"a layer or product is measured on one device, and the mesh has {mesh.size()}")
    return torch.empty(0, device=mesh.device_type).device


def _choose(what: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise ValueError(f"{what} {name!r} is unknown; known: {', '.join(names)}")


def _figures(written: Iterable[Tensor], **figures: float) -> dict[str, float]:
    """``figures``. Raises ``FloatingPointError`` if a written tensor is not finite, because an overflow makes the
    timing meaningless."""
    if not all(bool(tensor.isfinite().all()) for tensor in written):
        raise FloatingPointError("a pass wrote numbers that are not finite")
    return figures
