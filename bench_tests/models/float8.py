"""Training with 8-bit matrix products, from torchao."""

from __future__ import annotations

import torch
from torch import nn

from bench_tests.models.trainable import Trainable


def convert(model: Trainable, device: torch.device) -> None:
    """Make the linear layers of the model's blocks multiply in float8, in place.

    All three products of a layer, forward and backward, take e4m3 inputs and weights and e5m2 gradients. Each tensor is
    scaled by its own largest element at every use. Parameters keep their type. Attention, embeddings and everything
    from the head on stay as they are. A CPU emulates the products, with the same rounding but without the speed. Raises
    ``ValueError`` if the blocks have no linear layer.
    """
    if not any(isinstance(layer, nn.Linear) for layer in model.blocks.modules()):
        raise ValueError("fp8 needs linear layers, and the blocks of this model have none")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(model.blocks, config=Float8LinearConfig(emulate=device.type == "cpu"))
