"""A disk that becomes full loses no verdict and leaves no half of a file."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from own_project import replay, stored

from pytest_trainbench import plugin

FULL_DISK = """
import errno, os, types
from pytest_trainbench.schema import files

def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

files.tempfile = types.SimpleNamespace(mkstemp=full)
"""
"""A conftest.py of a project: the disk becomes full after the check at the start of the run."""


def test_a_full_disk_under_results_changes_no_verdict(replayed: pytest.Pytester) -> None:
    replayed.makeconftest(FULL_DISK)
    run = replay(replayed, "--results", "results")
    assert run.ret == 0
    run.assert_outcomes(passed=1)
    run.stdout.fnmatch_lines(["results: */results/my_step-*.json cannot be written (No space left on device)"])
    assert list((replayed.path / "results").iterdir()) == []


def test_a_full_temporary_folder_fails_the_row_with_one_sentence(replayed: pytest.Pytester) -> None:
    replayed.makeconftest(
        """
        import errno, os
        import pytest

        @pytest.fixture(autouse=True)
        def _full(monkeypatch, tmp_path_factory):
            def mktemp(name):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")
            monkeypatch.setattr(tmp_path_factory, "mktemp", mktemp)
        """
    )
    run = replay(replayed)
    assert run.ret == 1
    run.stdout.fnmatch_lines(["crash: mine: no space is left on the disk of /tmp/x: free some, or let TMPDIR *"])
    run.stdout.no_fnmatch_line("*Error*")


def test_a_full_disk_under_the_baselines_fails_the_row_with_one_sentence(replayed: pytest.Pytester) -> None:
    before = {path: path.read_text() for path in stored(replayed)}
    replayed.makeconftest(FULL_DISK)
    run = replay(replayed, "--save-baseline", step_ms=9.0)
    assert run.ret == 1
    run.stdout.fnmatch_lines(["crash: mine: its baseline cannot be written to */baselines (No space left on device)"])
    run.stdout.no_fnmatch_line("*Traceback*")
    assert {path: path.read_text() for path in stored(replayed)} == before
    assert not list((replayed.path / "baselines").rglob(".*"))


def test_a_report_that_cannot_be_finished_is_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("of another step\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
        with pytest.raises(OSError):
            plugin._append(path, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == "of another step\n"
    plugin._append(path, "of this step\n")
    assert path.read_text() == "of another step\nof this step\n"
