"""What the suite in bench_tests/ adds to the plugin: profiles, and the number formats that a device offers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.plugin import device_kind, is_case
from pytest_trainbench.schema.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.schema.record import Record

PROFILES = ("smoke", "seed")
"""smoke: the same code on tiny models, for a CPU. seed: the configuration of the published figures."""

GRIDS = ("headline", "full", "published")
"""headline: a part of a published grid, with its largest rows. full: all of it. published: all of it, run and counted
as it was published."""

CHECKED = ("mesh", "precision")
"""Parameters that a fixture looks at first: it skips what the device has not."""

REPORTERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""What transformers' ``Trainer`` can report to: packages that are called as it calls them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--profile",
        choices=PROFILES,
        help="size of every case (default: smoke on a CPU, seed on an accelerator)",
    )
    parser.addoption(
        "--grid",
        choices=GRIDS,
        default="headline",
        help="how much of a published grid of rows, shapes or meshes runs (default: headline)",
    )
    parser.addoption(
        "--report-to",
        choices=["none", *REPORTERS],
        default="none",
        help="where transformers' Trainer reports its losses (default: none); files go to runs/",
    )


def pytest_configure(config: pytest.Config) -> None:
    report_to = config.getoption("--report-to")
    if report_to in REPORTERS and find_spec(report_to) is None:
        raise pytest.UsageError(f"--report-to {report_to}: {report_to} is not installed; pip install {report_to}")
    config.addinivalue_line(
        "markers", "profiles(**{names: {profile: values}}): parametrise by profile; values may be {grid: values}"
    )


def _profile(config: pytest.Config) -> str:
    return config.getoption("--profile") or ("smoke" if device_kind(config) == "cpu" else "seed")


@pytest.hookimpl(trylast=True)  # after the test's own parameters, so that the mesh ends its name: [zero2-dp4]
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for marker in metafunc.definition.iter_markers("profiles"):
        for names, choices in marker.kwargs.items():
            values = choices[_profile(metafunc.config)]
            if isinstance(values, Mapping):
                values = values[metafunc.config.getoption("--grid")]
            indirect = [name for name in names.split(",") if name in CHECKED]
            metafunc.parametrize(names, values, ids=str, indirect=indirect)


def pytest_collection_finish(session: pytest.Session) -> None:
    # DeepSpeed picks its accelerator when it is imported, which the ranks' fork server does before they are told.
    if session.config.option.collectonly or not any(map(is_case, session.items)):
        return
    if device_kind(session.config) == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"


def pytest_trainbench_tables(records: Sequence[Record]) -> Mapping[str, pd.DataFrame]:
    from bench_tests.tables import tables

    return tables(records)


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> str:
    return _profile(request.config)


@pytest.fixture
def plan(profile: str) -> Plan | None:
    """How long to measure: smoke tests show that the code runs, not how fast."""
    return Plan(warmup=5, window_s=0.3, min_steps=12) if profile == "smoke" else None


@pytest.fixture
def grid(request: pytest.FixtureRequest) -> str:
    """One of :data:`GRIDS`; it chooses shapes in the seed profile only."""
    chosen: str = request.config.getoption("--grid")
    return chosen


@pytest.fixture
def amp(hardware: Hardware) -> str:
    """16-bit format of mixed precision: bf16 where the device has it, else fp16."""
    return hardware.amp


@pytest.fixture
def precision(request: pytest.FixtureRequest, hardware: Hardware) -> str:
    """A number format of matrix products; skips where the device has not got it."""
    name: str = request.param
    if not hardware.has(name):
        pytest.skip(f"{hardware.device_name} has no {name} products")
    return name


@pytest.fixture
def full(hardware: Hardware) -> str:
    """Format of full precision as a user would run it: tf32 products where the device has them, else fp32."""
    return hardware.full
