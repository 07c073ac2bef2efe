"""pytest options, fixtures and hooks of the suite in bench_tests/. They choose the size of each case and the number
formats that the device supports."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.plugin import device_kind, is_case
from pytest_trainbench.schema.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from pytest_trainbench.report.chart import AnyChart
    from pytest_trainbench.schema.record import Record

PROFILES = ("smoke", "seed")
"""``smoke`` runs the same code on tiny models and is meant for a CPU. ``seed`` is the configuration of the published
figures."""

PROFILE_SAYS = {
    "smoke": "tiny models that show that the code runs, and no figures of real training",
    "seed": "the models and sizes of the published figures",
}
"""What the header says about a profile."""

GRIDS = ("headline", "full", "published")
"""``headline`` runs a part of each published grid, its largest rows included. ``full`` runs each whole grid.
``published`` runs each whole grid with the set-up and the FLOP counting of the published figures."""

CHECKED = ("mesh", "precision")
"""Parameters that pass through a fixture. The fixture skips a value that the device does not support."""

REPORTERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Packages that transformers' ``Trainer`` can report to. The option takes the names that ``Trainer`` takes."""


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
        help="part of each published grid (rows, shapes, meshes) that runs (default: headline)",
    )
    parser.addoption(
        "--report-to",
        choices=["none", *REPORTERS],
        default="none",
        help="tool that transformers' Trainer reports losses to (default: none); its files go to runs/",
    )


def pytest_configure(config: pytest.Config) -> None:
    report_to = config.getoption("--report-to")
    if report_to in REPORTERS and find_spec(report_to) is None:
        raise pytest.UsageError(f"--report-to {report_to}: {report_to} is not installed; pip install {report_to}")
    config.addinivalue_line(
        "markers", "profiles(**{names: {profile: values}}): parametrize a test by profile; values may be {grid: values}"
    )


def _profile(config: pytest.Config) -> str:
    return config.getoption("--profile") or ("smoke" if device_kind(config) == "cpu" else "seed")


@pytest.hookimpl(trylast=True)  # last, so that the mesh ends a test's name: [zero2-dp4]
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for marker in metafunc.definition.iter_markers("profiles"):
        for names, choices in marker.kwargs.items():
            values = choices[_profile(metafunc.config)]
            if isinstance(values, Mapping):
                values = values[metafunc.config.getoption("--grid")]
            indirect = [name for name in names.split(",") if name in CHECKED]
            metafunc.parametrize(names, values, ids=str, indirect=indirect)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Say that a row which was asked for by its id may be outside the part of the grid that runs."""
    try:
        return (yield)
    except pytest.UsageError as error:
        grid = session.config.getoption("--grid")
        missing = [said for said in map(str, error.args) if said.startswith("not found: ") and "[" in said]
        if grid != "headline" or not missing:
            raise
        hint = "a row that only the whole published grid has needs --grid full"
        raise pytest.UsageError(*error.args, hint) from None


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str | None:
    if config.option.collectonly or not any(map(is_case, items)):
        return None
    profile = _profile(config)
    return f"bench_tests: profile {profile}, {PROFILE_SAYS[profile]}; --grid {config.getoption('--grid')}"


def pytest_collection_finish(session: pytest.Session) -> None:
    # DeepSpeed picks its accelerator at import. The ranks' fork server imports DeepSpeed before a rank knows its
    # device.
    if session.config.option.collectonly or not any(map(is_case, session.items)):
        return
    if device_kind(session.config) == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"


def pytest_trainbench_tables(records: Sequence[Record]) -> Mapping[str, pd.DataFrame]:
    from bench_tests.tables import tables

    return tables(records)


def pytest_trainbench_charts(records: Sequence[Record]) -> Mapping[str, Sequence[AnyChart]]:
    from bench_tests.charts import charts

    return charts(records)


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> str:
    return _profile(request.config)


@pytest.fixture
def plan(profile: str) -> Plan | None:
    """How long to measure; ``None`` for the plugin's default. A smoke case shows that the code runs, so its plan is
    short."""
    return Plan(warmup=5, window_s=0.3, min_steps=12) if profile == "smoke" else None


@pytest.fixture
def grid(request: pytest.FixtureRequest) -> str:
    """The value of ``--grid``, one of :data:`GRIDS`."""
    chosen: str = request.config.getoption("--grid")
    return chosen


@pytest.fixture
def amp(hardware: Hardware) -> str:
    """The 16-bit number format for mixed precision: bf16 where the device supports it, else fp16."""
    return hardware.amp


@pytest.fixture
def precision(request: pytest.FixtureRequest, hardware: Hardware) -> str:
    """A number format for matrix products. Skips the test if the device does not support the format."""
    name: str = request.param
    if not hardware.has(name):
        pytest.skip(f"{hardware.device_name} has no hardware for {name} products")
    return name


@pytest.fixture
def full(hardware: Hardware) -> str:
    """The full-precision number format that a user would choose: tf32 products where the device supports them, else
    fp32."""
    return hardware.full
