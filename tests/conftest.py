"""Fixtures of several test files."""

from __future__ import annotations

import os

import numpy  # noqa: F401 (pytester forgets what a test imports, and numpy cannot be imported twice)
import own_project  # a module, since pytest takes every name in here that begins with its own for a hook
import pytest
import ranks
from own_project import STEP, TEST, stored


def pytest_configure(config: pytest.Config) -> None:
    # Two threads of one small step wait for each other on cores that other tests use: twelve steps of the tiny GPT took
    # 0.2 s with one thread and 3 s with two. Set before torch is imported, here and in all ranks.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ranks.MODULES = config.getini("trainbench_preload")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run on several processes, those of a file stay on one of them, and so do all files that train: what
    the ranks import takes ten seconds a process."""
    for item in items:
        assert isinstance(item, pytest.Function)
        item.add_marker(pytest.mark.xdist_group("ranks" if trains(item) else item.module.__name__))


def trains(item: pytest.Item) -> bool:
    """Whether the tests of the item's file share ranks."""
    assert isinstance(item, pytest.Function)
    return any(one is ranks or one is ranks.train for one in vars(item.module).values())


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or not trains(nextitem):
        ranks.dismiss()


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's repository with one step builder and one test."""
    # Where these tests run on several processes, pytest-benchmark would take the project's for one of them.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeini("[pytest]\npythonpath = .\ntrainbench_preload = torch.utils.flop_counter\n")
    pytester.makepyfile(my_steps=STEP.format(slow=""), test_it=TEST)
    return pytester


BASELINES: dict[str, str] = {}
"""What one run stored, by path: the case is the same in every test."""


@pytest.fixture
def saved(project: pytest.Pytester) -> pytest.Pytester:
    """A project with a baseline."""
    if not BASELINES:
        assert own_project.pytest_run(project, "--save-baseline", "--launches", "1").ret == 0
        BASELINES.update({str(path.relative_to(project.path)): path.read_text() for path in stored(project)})
    for path, text in BASELINES.items():
        (project.path / path).parent.mkdir(parents=True, exist_ok=True)
        (project.path / path).write_text(text)
    return project


@pytest.fixture
def replayed(project: pytest.Pytester) -> pytest.Pytester:
    """A project with a baseline, both of launches that are replayed."""
    assert own_project.replay(project, "--save-baseline", "--launches", "1").ret == 0
    return project


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests measure is no part of the history of whoever runs them, and runs are not judged as CI's are."""
    monkeypatch.setenv("TRAINBENCH_HISTORY", "none")
    monkeypatch.delenv("CI", raising=False)
