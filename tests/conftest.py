"""Fixtures of several test files."""

from __future__ import annotations

import os

import numpy  # noqa: F401 (pytester unloads the imports of a test, and numpy cannot be imported twice)
import own_project  # as a module: pytest takes every name in this file that begins with "pytest_" for a hook
import pytest
import ranks
from own_project import STEP, TEST, stored


def pytest_configure(config: pytest.Config) -> None:
    # With two threads, a small step waits for cores that other tests use: twelve steps of the tiny GPT took 0.2 s with
    # one thread and 3 s with two. The variable must be set before torch is imported, here and in all ranks.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ranks.MODULES = config.getini("trainbench_preload")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With pytest-xdist, all tests of a file run in one worker. All files that train share one worker, because the
    imports of the ranks take ten seconds per worker."""
    for item in items:
        assert isinstance(item, pytest.Function)
        item.add_marker(pytest.mark.xdist_group("ranks" if trains(item) else item.module.__name__))


def trains(item: pytest.Item) -> bool:
    """Whether the tests in this file train on shared ranks."""
    assert isinstance(item, pytest.Function)
    return any(one is ranks or one is ranks.train for one in vars(item.module).values())


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or not trains(nextitem):
        ranks.dismiss()


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's repository with one step builder and one test."""
    # With pytest-xdist, pytest-benchmark would take the project's run for one of the workers.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeini(
        "[pytest]\npythonpath = .\ntrainbench_preload = torch.utils.flop_counter\ntrainbench_confirm = 2\n"
    )
    pytester.makepyfile(my_steps=STEP.format(slow=""), test_it=TEST)
    return pytester


BASELINES: dict[str, str] = {}
"""Path -> text of the stored baselines. One run stores them, because the case is the same in every test."""


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
    """A project with a baseline. Its launches are replayed and start no ranks."""
    assert own_project.replay(project, "--save-baseline", "--launches", "1").ret == 0
    return project


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests write nothing to the history of their user, and their runs are not judged as in CI."""
    monkeypatch.setenv("TRAINBENCH_HISTORY", "none")
    monkeypatch.delenv("CI", raising=False)
