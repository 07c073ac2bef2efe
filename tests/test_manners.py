"""The plugin keeps pytest's manners: verbosity, colours, stopping, reruns, coverage and pytest-benchmark's table."""

from __future__ import annotations

import pytest
from own_project import TEST, replay

SECOND = "\ndef test_second(bench, mesh):\n    bench(my_step, mesh=mesh, width=32)\n"

FAILS = "\ndef test_broken(bench, mesh):\n    assert not bench(my_step, mesh=mesh, width=8)\n"


def test_pytest_benchmark_does_not_repeat_the_table(project: pytest.Pytester) -> None:
    with (project.path / "test_it.py").open("a") as test:
        test.write("\ndef test_plain(benchmark):\n    benchmark(sum, range(9))\n")
    both = replay(project, "--launches", "1")
    both.stdout.fnmatch_lines(["*trainbench: 1 no-baseline*", "*benchmark: 1 tests*", "test_plain *"])
    both.stdout.no_fnmatch_line("test_mine  *")
    alone = replay(project, "--launches", "1", "-k", "mine")
    assert alone.ret == 0
    alone.stdout.no_fnmatch_line("*benchmark: * tests*")


def test_an_option_of_pytest_benchmark_shows_its_table(project: pytest.Pytester) -> None:
    result = replay(project, "--launches", "1", "--benchmark-columns=min")
    result.stdout.fnmatch_lines(["*benchmark: 1 tests*", "test_mine *"])


def test_quiet_and_verbose_runs_have_the_same_table(project: pytest.Pytester) -> None:
    for option in ("-q", "-v"):
        result = replay(project, "--launches", "1", option)
        assert result.ret == 0
        result.stdout.fnmatch_lines(["*trainbench: 1 no-baseline*", "case *", "mine *"])


def test_no_color_is_respected(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PY_COLORS", raising=False)  # pytester sets it
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in replay(project, "--launches", "1").stdout.str()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in replay(project, "--launches", "1").stdout.str()


def test_x_stops_at_the_first_red_row_and_reports_the_cases_without_a_result(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=TEST + FAILS + SECOND)
    result = replay(project, "--launches", "1", "-x")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*trainbench: 1 no-baseline, 1 invalid; the run was cut off: 1 of 3 cases have no result*"]
    )


def test_lf_runs_only_the_rows_that_failed(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=TEST + FAILS)
    replay(project, "--launches", "1")
    result = replay(project, "--launches", "1", "--lf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["broken *"])


def test_a_rerun_counts_once(project: pytest.Pytester) -> None:
    """pytest-rerunfailures runs a failed test again. Its measurement is kept, and its row is in the table once."""
    pytest.importorskip("pytest_rerunfailures")
    project.makepyfile(test_it=TEST + FAILS)
    result = replay(project, "--launches", "1", "--reruns", "2")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*trainbench: 1 no-baseline, 1 invalid*"])
    assert sum(line.startswith("broken ") for line in result.outlines) == 1
    result.stdout.no_fnmatch_line("*is the same case as*")


def test_coverage_of_this_process_can_be_measured(project: pytest.Pytester) -> None:
    pytest.importorskip("pytest_cov")
    result = replay(project, "--launches", "1", "--cov=test_it")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_it.py * 100%", "*trainbench: 1 no-baseline*"])
