"""Two probes of the host, compared with the host's work of issuing a training step: which probe shows a slow host?

    python -m benchmarks.host_rate [--seconds 60]

The work is the host's part of an FSDP2 step: the suite's strategy on a GPT of 24 layers with next to nothing to
compute. A fake process group answers its collectives at once. Rounds of the work and of each probe alternate for the
requested time, measured on this thread's CPU clock. Four rounds make a sample.

The command prints how well each probe follows the work:

* Spearman's rank correlation, and the slope of the logarithms.
* *slow, and explained*: among samples whose step took at least 15 % longer than in quiet samples (the fastest quarter),
  the share that the probe would explain by the rules of :mod:`pytest_trainbench.judge.attribution`.
* *quiet, and blamed*: among samples whose step took at most 5 % longer, the share in which the probe would wrongly
  blame the host.

On a host that is quiet all the time nothing correlates.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tabulate import tabulate
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench_tests.models.gpt import gpt
from bench_tests.strategies import STRATEGIES
from bench_tests.training.recipe import Recipe
from pytest_trainbench.judge.attribution import EXPLAINS_LEAST
from pytest_trainbench.rank.host_counters import looking_s
from pytest_trainbench.schema.conditions import CONDITIONS, LostSpeed

RANKS = 4

TOGETHER = 4
"""Rounds in a sample."""

SLOW, QUIET = math.log(1.15), math.log(1.05)

SHORT = random.Random(0).sample(range(1 << 30), 4096)


def step() -> Callable[[], object]:
    """A function that issues one step of rank 0 of :data:`RANKS` ranks."""
    # "fake" is torch's own process group for tests. It does nothing.
    init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    dp = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))["dp"]
    model = gpt(layers=24, hidden=64, heads=4, vocabulary=128, positions=16)
    row = STRATEGIES["fsdp2"]
    trainee = row.resolve()(
        model, dp, Recipe(precision="bf16", learning_rate=1e-4, device=torch.device("cpu")), **row.options
    )
    tokens = torch.randint(128, (1, 16))
    return lambda: trainee.run(tokens)


def sorts() -> None:
    for _ in range(20):
        sorted(SHORT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    ways = {"the step": step(), "sorting a short list": sorts, "looking at scattered objects": looking_s}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    end = time.monotonic() + asked.seconds
    while time.monotonic() < end:
        for name, way in ways.items():
            began = time.thread_time()
            found = way()
            took[name].append(found if isinstance(found, float) else time.thread_time() - began)
    logs = {name: sampled(values) for name, values in took.items()}
    longer = {name: log - np.quantile(log, 0.25) for name, log in logs.items()}
    work = longer.pop("the step")
    slow, quiet = work > SLOW, work < QUIET
    rule = CONDITIONS["host_rate"].rule
    assert isinstance(rule, LostSpeed)
    blamed = -math.log(1 - rule.margin)
    print(f"{len(work)} samples; the step takes {np.median(took['the step']):.3f} s; slow in {slow.mean():.0%} of them")
    table = [
        {
            "look": name,
            "rank correlation": f"{spearmanr(look, work).statistic:.2f}",
            "slope": f"{np.polyfit(look, work, 1)[0]:.2f}",
            "slow, and explained": share(
                (look[slow] > blamed) & (rule.share * look[slow] >= EXPLAINS_LEAST * work[slow])
            ),
            "quiet, and blamed": share(look[quiet] > blamed),
        }
        for name, look in longer.items()
    ]
    print(tabulate(table, headers="keys", tablefmt="github", disable_numparse=True))


def share(of: NDArray[np.bool_]) -> str:
    return f"{of.mean():.0%}" if len(of) else "none"


def sampled(values: list[float]) -> NDArray[np.float64]:
    """Logarithms of ``values``, averaged over :data:`TOGETHER` rounds."""
    whole = len(values) // TOGETHER * TOGETHER
    means: NDArray[np.float64] = np.log(values[:whole]).reshape(-1, TOGETHER).mean(axis=1)
    return means


if __name__ == "__main__":
    main()
