"""A user's repository with one step builder and one test, run through the public door."""

from __future__ import annotations

from pathlib import Path

import pytest

STEP = """
import time
import torch
from torch.nn.parallel import DistributedDataParallel
from pytest_trainbench import Step

def my_step(mesh, *, width):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(2, 32, width)
    def run():
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.004{slow})
        return loss.detach()
    return Step(run=run, samples=32 * mesh.size(), parameters=model.parameters, replicated=True)
"""

TEST = """
from pytest_trainbench import Plan
from my_steps import my_step

def test_mine(bench, mesh):
    bench(my_step, mesh=mesh, plan=Plan(min_steps=20, max_steps=20), width=16)
"""


def pytest_run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_subprocess("--hw", "cpu", *args)


def stored(project: pytest.Pytester) -> list[Path]:
    return sorted((project.path / "baselines").rglob("*.json"))
