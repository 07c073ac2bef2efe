"""A plain training loop for any module. Tests compare a graph that replaces a module with the module itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench_tests.models import MODELS
from bench_tests.models.trainable import Trainable


def losses(model: nn.Module, batches: Tensor, precision: torch.dtype = torch.float32) -> list[float]:
    """The losses of one AdamW step per batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=MODELS["bert-tiny"].learning_rate)
    seen = []
    for batch in batches:
        with torch.autocast("cpu", precision, enabled=precision is not torch.float32):
            loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


def batches_of(model: Trainable, steps: int) -> Tensor:
    (pool,) = model.draw(samples=4)
    return pool.repeat(-(-steps // len(pool)), 1, 1)[:steps]
