"""Training with 8-bit matrix products, from torchao."""

from __future__ import annotations

import torch
from torch import nn

from bench_tests.models.trainable import Trainable


def convert(model: Trainable, device: torch.device) -> None:
    """Make the linear layers of the blocks multiply in float8, in place: their three products, forward and backward,
    take e4m3 inputs and weights and e5m2 gradients, each tensor scaled by its own largest element at every use.

    Parameters stay what they are. Attention, embeddings, the head and what follows it are left alone. A CPU emulates
    the products: the same rounding, none of the speed. Raises ``ValueError`` where the blocks have no linear layer.
    """
    if not any(isinstance(layer, nn.Linear) for layer in model.blocks.modules()):
        raise ValueError("no block of this model has a linear layer that could take fp8")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(model.blocks, config=Float8LinearConfig(emulate=device.type == "cpu"))
