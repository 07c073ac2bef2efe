"""Float8: which products are computed in 8 bits, and how exactly."""

from __future__ import annotations

import torch
from torch import nn
from torchao.float8.float8_linear import Float8Linear

from bench_tests.models import find_model, float8


def test_only_linear_layers_of_blocks_are_converted_and_parameters_stay() -> None:
    model = find_model("bert-tiny").build("cpu", sequence=16)
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    linear = {name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}

    float8.convert(model, torch.device("cpu"))

    converted = {name for name, layer in model.named_modules() if isinstance(layer, Float8Linear)}
    assert converted == {name for name in linear if ".encoder.layer." in name}
    assert len(converted) == 2 * 6 and len(linear - converted) == 4
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before


def test_a_float8_product_differs_only_by_rounding() -> None:
    torch.manual_seed(0)
    block = nn.ModuleList([nn.Linear(32, 32)])
    x = torch.randn(16, 32)
    exact = block[0](x)

    model = nn.Module()
    model.blocks = block
    float8.convert(model, torch.device("cpu"))  # type: ignore[arg-type]

    error = (model.blocks[0](x) - exact).norm() / exact.norm()
    assert 0.005 < error < 0.06, "e4m3 has three bits after the point: up to 6 % a factor"
