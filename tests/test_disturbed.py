"""End to end: other processes slow a step, and the row names them, fails as ``environment``, and blames no code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_project import pytest_run, stored

from pytest_trainbench.schema.record import dump, read_record

STEPS, WARMUP = 20, 8

PRELOAD = "-o", "trainbench_preload=torch._dynamo"
"""The modules that torch imports for the step below."""

STEP = f"""
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from pytest_trainbench import Step

BURN = Path(__file__).with_name("burn")

def my_step(mesh, *, width):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(2, 512, width)
    runs = 0
    def run():
        nonlocal runs
        runs += 1
        # The other processes burn only while steps are timed, so that the rest of the test is quick.
        if runs == {WARMUP}:
            BURN.touch()
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if runs == {WARMUP + STEPS}:
            BURN.unlink(missing_ok=True)
        return loss.detach()
    return Step(run=run, samples=512 * mesh.size(), parameters=model.parameters, replicated=True)
"""

TEST = f"""
from pytest_trainbench import Plan
from my_steps import my_step

def test_mine(bench, mesh):
    bench(my_step, mesh=mesh, plan=Plan(warmup={WARMUP}, min_steps={STEPS}, max_steps={STEPS}), width=512)
"""

BURNER = """
import sys, time
from pathlib import Path
burn = Path(sys.argv[1])
while True:
    if burn.exists():
        sum(range(100_000))
    else:
        time.sleep(0.01)
"""


@contextlib.contextmanager
def burners(project: pytest.Pytester) -> Iterator[None]:
    """Two busy processes per core while the steps of a launch are timed."""
    command = [sys.executable, "-c", BURNER, str(project.path / "burn")]
    started = [subprocess.Popen(command) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def calmed(path: Path) -> None:
    """Rewrite the baseline as an undisturbed machine would have measured it: the machine of this test may be busy."""
    record = read_record(path)
    (one,) = record.launches
    fastest_ms = min(one.step_ms)
    calm = dataclasses.replace(
        one,
        step_ms=[fastest_ms] * len(one.step_ms),
        metrics={**one.metrics, "step_ms": fastest_ms},
        conditions={"other_cores": [0.0], "waiting": [0.0], "stolen": [0.0]},
    )
    path.write_text(dump(dataclasses.replace(record, launches=(calm,) * 3).to_json()))


def test_a_step_slowed_by_other_processes_ends_as_environment(project: pytest.Pytester) -> None:
    project.makepyfile(my_steps=STEP, test_it=TEST)
    assert pytest_run(project, *PRELOAD, "--save-baseline", "--launches", "1").ret == 0
    (path,) = stored(project)
    calmed(path)
    with burners(project):
        result = pytest_run(project, *PRELOAD, "--launches", "1", "--junit-xml", "junit.xml")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            # Interrupted steps may be too uneven for a verdict on the step time. Then samples/s has one.
            "environment: mine: *% worse *; the machine*other processes used *% of the cores, baseline 0%*",
            "  judged    step time: * worse *",
            "  machine   other processes used *% of the cores, baseline 0%",
            "  then      first check the machine, then run this again; do not save a new baseline",
            "*trainbench: 1 environment*",
        ]
    )
    result.stdout.no_fnmatch_line("  accept *")
    suite = ElementTree.parse(project.path / "junit.xml").getroot()[0]
    assert suite.attrib["failures"] == "1"
    assert 'value="environment"' in (project.path / "junit.xml").read_text()
