"""The FLOP counter agrees with counting by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_trainbench.rank import flops

BATCH, HEADS, SEQUENCE, WIDTH = 2, 3, 16, 8


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_attention_counts_two_products_forward_and_four_backward_whatever_the_kernel(
    backend: SDPBackend,
) -> None:
    query, key, value = torch.randn(3, BATCH, HEADS, SEQUENCE, WIDTH, requires_grad=True)
    with sdpa_kernel(backend), flops.counter() as counted:
        torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()
    product = 2 * BATCH * HEADS * SEQUENCE * SEQUENCE * WIDTH
    assert counted.get_total_flops() == 6 * product


def test_a_gpu_kernel_counts_the_same() -> None:
    """The count depends only on shapes, so the formula needs no device."""
    backward = flops.counter().flop_registry[torch.ops.aten._scaled_dot_product_flash_attention_backward]
    gradient, query, key, value = (torch.empty(BATCH, HEADS, SEQUENCE, WIDTH) for _ in range(4))
    assert backward(gradient, query, key, value, out_val=None) == 4 * 2 * BATCH * HEADS * SEQUENCE**2 * WIDTH


def test_a_linear_layer_counts_one_product_forward_and_two_backward() -> None:
    layer, rows = torch.nn.Linear(32, 64), torch.randn(8, 32, requires_grad=True)
    with flops.counter() as counted:
        layer(rows).sum().backward()
    assert counted.get_total_flops() == 3 * 2 * 8 * 32 * 64
