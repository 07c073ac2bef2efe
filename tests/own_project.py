"""A user's repository with one step builder and one test, run as a whole pytest session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

STEP = """
import time
import torch
from pytest_trainbench import Step

def my_step(mesh, *, width):
    torch.manual_seed(0)
    model = torch.nn.Linear(width, width)
    x, y = torch.randn(2, 32, width)
    def run():
        loss = torch.nn.functional.mse_loss(model(x), y)
        model.zero_grad(); loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.data -= 0.1 * parameter.grad
        time.sleep(0.004{slow})
        return loss.detach()
    return Step(run=run, samples=32 * mesh.size(), parameters=model.parameters, replicated=True)
"""
"""Data parallelism by hand. DDP and torch's optimizers import ``torch._dynamo`` at their first use, which would take a
third of the time of a run of this project."""

TEST = """
from pytest_trainbench import Plan
from my_steps import my_step

def test_mine(bench, mesh):
    bench(my_step, mesh=mesh, plan=Plan(min_steps=20, max_steps=20), width=16)
"""


def pytest_run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_subprocess("--hw", "cpu", *args)


def replay(project: pytest.Pytester, *args: str, step_ms: float = 8.0) -> pytest.RunResult:
    """The same with ``replayed.py`` in place of ranks, for tests of a run's texts. The step needs no torch."""
    if (project.path / "my_steps.py").exists():
        project.makepyfile(my_steps="def my_step(mesh, *, width): ...")
    path = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        environ.setenv("PYTEST_PLUGINS", "replayed")
        environ.setenv("REPLAYED_STEP_MS", f"{step_ms}")
        return pytest_run(project, *args)


def stored(project: pytest.Pytester) -> list[Path]:
    return sorted((project.path / "baselines").rglob("*.json"))
