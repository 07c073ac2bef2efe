"""Whole pytest sessions on a project in a temporary folder, with real ranks or with ``replayed.py`` in their place."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timedelta

import pytest
from own_project import STEP, TEST, pytest_run, replay, stored
from test_launch import wait_until_gone

import pytest_trainbench
from pytest_trainbench.judge.outcome import Verdict
from pytest_trainbench.plugin import HAS_BASELINE, _all_skipped
from pytest_trainbench.report.rows import Row

ANY_TIME = "--floor", "90%"
"""For tests that check no times. A step of 8 ms took 12 ms while the tests of another worker were busy."""


def test_a_users_step_is_saved_and_then_compared(project: pytest.Pytester) -> None:
    assert pytest_run(project, "--save-baseline").ret == 0
    (path,) = stored(project)
    table = pytest_trainbench.load(path)
    assert list(table["launch"]) == list(range(5))
    assert (table["step_ms"] > 4).all() and (table["param.width"] == 16).all()
    project.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            print("heavy:", sorted({"pandas", "scipy.stats"} & set(sys.modules)))
        """
    )
    result = pytest_run(project, "--results", "out", *ANY_TIME)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "trainbench: *1 baseline in baselines/cpu-*; launches of each case: 3",
            "*mine*≥*",
            # Importing them takes longer than a session without them takes to judge and report.
            "heavy: []",
        ]
    )
    assert pytest_trainbench.load(project.path / "out")["outcome"].eq("ok").all()


def test_few_stored_launches_are_named_when_saved_and_used(project: pytest.Pytester) -> None:
    few = "1 of 1 baselines have fewer than 5 launches, so that runs see less"
    replay(project, "--save-baseline", "--launches", "3").stdout.fnmatch_lines([f"*{few}"])
    replay(project).stdout.fnmatch_lines([f"trainbench: {few}"])
    replay(project, "--collect-only").stdout.fnmatch_lines([f"trainbench: {few}"])


def test_calibrate_reports_the_slowdowns_that_this_machine_detects(project: pytest.Pytester) -> None:
    """The error budget is so small that no row is red. Planted slowdowns are then missed, and the report says so."""
    result = replay(project, "--calibrate", "--launches", "1", "--confirm", "0", "--night-error", "1/1000000")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "mine * calibrated",
            "nothing changed: 0 of 1 rows red",
            "10% slower: found in 0 of 1 rows: not in mine",
            "What a run on this machine can detect",
            "case *noise of a launch *sees with 3 *nothing changed *2% slower *10% slower",
            "mine *%*≥*ok *missed (1) *missed (1)",
        ]
    )
    assert not stored(project)


def test_the_report_shows_what_a_task_costs_on_request(project: pytest.Pytester) -> None:
    result = replay(project, "--launches", "1", "--task-samples", "1000000", "--price", "2.5usd")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "Cost, also of a task of 1,000,000 samples, at 2.5 USD per device and hour (--price)",
            "case *devices *samples/s *USD per million samples *task hours *task USD *",
            "mine *2 *",
        ]
    )


def test_a_slower_step_fails_its_test_and_the_report_explains_it(project: pytest.Pytester) -> None:
    pytest_run(project, "--save-baseline", "--launches", "3", "--history", "kept")
    # Other tests may halve the speed of the host. The slowdown is larger than that explains.
    project.makepyfile(my_steps=STEP.format(slow=" * 12"))
    result = pytest_run(project, "--junit-xml", "junit.xml", "--history", "kept")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "regression: mine: step time *% worse (sees ≥ *%)*",
            "  judged    step time: * ms, *% worse (sees ≥ *%): regression",
            "  baseline  *baselines/cpu-*/my_step-dp2-*.json, saved 20*",
            "  launches  * against 3",
            "  differs   *",
            "  since     this run; green at 20*-*-* UTC; between them:",
            "  accept    python -m pytest test_it.py::test_mine *--hw cpu *--save-baseline",
            "  by hand   OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m pytest_trainbench.rank.worker */job.json",
            "*trainbench: 1 regression*",
        ]
    )
    suite = ElementTree.parse(project.path / "junit.xml").getroot()[0]
    assert suite.attrib["failures"] == "1"
    values = {one.attrib["name"]: one.attrib["value"] for one in suite.iter("property")}
    assert values["trainbench_outcome"] == "regression"
    assert values["process_bytes"].isdecimal(), "in full"
    again = pytest_run(project, "--lf", "--launches", "1", "--history", "kept")
    again.stdout.fnmatch_lines(["*rerun previous 1 failure*", "  since     20*-*-* UTC, 2 runs in a row; green at 20*"])


def test_the_accept_command_leaves_out_the_options_of_a_nightly_job(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would store three launches instead of five, and write to the folders of a CI runner."""
    nightly = ["--launches", "1", "--run-timeout=500", "--confirm=0", "--night-error", "1%"]
    files = ["--results", "out", "--report-md", "summary.md", "--junit-xml=junit.xml"]
    monkeypatch.setenv("CI", "true")
    result = replay(project, "-k", "mine", *nightly, *files)
    (accept,) = (line.split(maxsplit=1)[1] for line in result.outlines if line.startswith("  accept "))
    kept = accept.partition("test_it.py::test_mine ")[2]
    assert re.sub(r" ?-p \S+| ?--basetemp=\S+", "", kept).strip() == (
        "--hw cpu -k mine --night-error 1% --save-baseline"
    )


def test_the_accept_command_keeps_the_options_of_a_conftest(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--size', default='s')")
    monkeypatch.setenv("CI", "true")
    monkeypatch.chdir(project.mkdir("below"))
    result = replay(project, "../test_it.py", "--size", "large", "--launches", "1")
    result.stdout.fnmatch_lines(["  accept    python -m pytest ../test_it.py::test_mine *--size large --save-baseline"])


def test_the_accept_command_keeps_an_option_value_that_is_also_a_path(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ``pytest bench -k bench``, ``-k`` without its value is an error."""
    monkeypatch.setenv("CI", "true")
    project.mkdir("mine")
    (project.path / "test_it.py").rename(project.path / "mine" / "test_it.py")
    result = replay(project, "mine", "-k", "mine", "--launches", "1")
    result.stdout.fnmatch_lines(["  accept    python -m pytest mine/test_it.py::test_mine *-k mine --save-baseline"])


def test_an_interrupted_run_reports_the_cases_without_a_result(project: pytest.Pytester) -> None:
    """Otherwise its reports look complete, because nobody reads the log of a cancelled job to the end."""
    project.makepyfile(
        test_cut="""
        import signal

        from my_steps import my_step
        from pytest_trainbench import Plan

        def test_first(bench, mesh):
            bench(my_step, mesh=mesh, plan=Plan(min_steps=20, max_steps=20), width=16)

        def test_second(bench, mesh):
            signal.raise_signal(signal.SIGINT)

        def test_third(bench, mesh):
            bench(my_step, mesh=mesh, width=9)
        """
    )
    result = replay(project, "test_cut.py", "--launches", "1", "--report-md", "report.md")
    said = "1 no-baseline; the run was cut off: 2 of 3 cases have no result"
    result.stdout.fnmatch_lines([f"*trainbench: {said}*"])
    assert (project.path / "report.md").read_text().startswith(f"## Training benchmark: {said}\n")
    result = replay(project, "test_cut.py", "-k", "second", "--report-md", "second.md")
    said = "the run was cut off: 1 of 1 cases have no result"
    assert (project.path / "second.md").read_text().startswith(f"## Training benchmark: {said}\n")


def test_one_more_collective_is_red_and_named(saved: pytest.Pytester) -> None:
    """Each of two ranks reduces eight more floats. The step time does not show that."""
    more = "loss.backward(); torch.distributed.all_reduce(torch.ones(8))"
    saved.makepyfile(my_steps=STEP.format(slow="").replace("loss.backward()", more))
    result = pytest_run(saved, "--launches", "1", *ANY_TIME)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "regression: mine: collectives a step, all ranks: 4 → 6; bytes into *: 2,176 → 2,240; *time*",
            "*all_reduce: 4 → 6 a step, 2,176 → 2,240 B",
            "  accept    python -m pytest test_it.py::test_mine *--save-baseline",
        ]
    )


def test_a_skip_for_too_few_devices_states_both_numbers(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.mesh(dp=4, tp=4)
        def test_mine(bench, mesh):
            raise AssertionError("not reached")
        """
    )
    result = replay(project, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["skipped: mine: needs 16 ranks, and this CPU gets 4: --devices 16 starts them", "SKIPPED*needs 16 ranks*"]
    )


def test_the_report_shows_every_skipped_case_and_no_plain_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import pytest

        @pytest.fixture
        def fast_format(hardware):
            pytest.skip("no fp8 here")

        def test_by_a_fixture(bench, fast_format): ...

        def test_by_itself(bench):
            pytest.skip("of its own")

        @pytest.mark.skipif(True, reason="by a marker")
        def test_by_a_marker(bench): ...

        @pytest.mark.skip(reason="no case")
        def test_plain(): ...
        """
    )
    result = replay(project)
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(
        [
            "*trainbench: 3 skipped*",
            "skipped: by_a_fixture: no fp8 here",
            "skipped: by_itself: of its own",
            "skipped: by_a_marker: by a marker",
        ]
    )
    result.stdout.no_fnmatch_line("*no case*")


def test_the_report_shows_cases_that_fail_before_their_measurement(project: pytest.Pytester) -> None:
    """Otherwise the summary of a red night would be green."""
    project.makepyfile(
        test_it="""
        import pytest

        @pytest.fixture
        def data():
            raise OSError("no such disk")

        def test_by_a_fixture(bench, data): ...

        def test_by_itself(bench):
            bench("my_steps:my_step", width=16)

        @pytest.mark.mesh("dp2")
        def test_by_its_mesh(bench, mesh): ...

        @pytest.mark.xfail
        def test_as_expected(bench):
            assert False

        def test_plain():
            assert False
        """
    )
    result = pytest_run(project, "--report-md", "summary.md")
    result.assert_outcomes(errors=2, failed=2, xfailed=1)
    text = (project.path / "summary.md").read_text()
    assert text.startswith("## Training benchmark: 1 invalid, 2 crash\n")
    assert re.findall("<summary>(.*)</summary>", text) == [
        "crash: by_a_fixture: OSError: no such disk",
        "crash: by_itself: TypeError: bench.&lt;locals&gt;.run() missing 1 required keyword-only argument: 'mesh'",
        "invalid: by_its_mesh: the mesh marker takes degrees by name: @pytest.mark.mesh(dp=2, tp=2)",
    ]


def test_a_case_that_never_calls_bench_is_in_the_report(project: pytest.Pytester) -> None:
    """Its test passes, and without a row nobody would see that it measured nothing."""
    project.makepyfile(test_it="def test_forgotten(bench, mesh): ...")
    result = replay(project)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*trainbench: 1 skipped*",
            "skipped: forgotten: the test passed without a call of bench, so nothing was measured",
        ]
    )


@pytest.mark.parametrize("option", ["--fixtures", "--fixtures-per-test"])
def test_a_list_of_fixtures_starts_nothing_and_reports_no_cut_off_run(project: pytest.Pytester, option: str) -> None:
    result = replay(project, option)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*Measure one training step and compare it with its baseline.*"])
    result.stdout.no_fnmatch_line("*trainbench: *cut off*")


def test_the_header_says_how_long_the_run_takes_once_the_history_knows(project: pytest.Pytester) -> None:
    first = replay(project, "--launches", "2", "--history", "kept")
    first.stdout.no_fnmatch_line("*this run takes*")
    second = replay(project, "--launches", "2", "--history", "kept")
    second.stdout.fnmatch_lines(["trainbench: this run takes about * s, by the last runs of these rows; *"])


@pytest.mark.parametrize("mark", ['"dp2"', "", "dpp=2"])
def test_a_malformed_mesh_marker_is_refused(project: pytest.Pytester, mark: str) -> None:
    project.makepyfile(test_it=f"import pytest\n\n@pytest.mark.mesh({mark})\ndef test_mine(bench, mesh):\n    pass\n")
    result = replay(project)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*@pytest.mark.mesh(dp=2, tp=2)" if "=" not in mark else "*dpp*"])


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("tolerance=0.1", '*@pytest.mark.gate("step_ms", tolerance=0.1)'),
        ('"speed", floor=0.1', "*'speed' has no floor or tolerance to set: type one of step_ms, *"),
    ],
)
def test_a_malformed_gate_marker_is_refused(project: pytest.Pytester, mark: str, said: str) -> None:
    project.makepyfile(test_it=TEST.replace("def test", f"import pytest\n@pytest.mark.gate({mark})\ndef test"))
    result = replay(project)
    assert result.ret == 1
    result.stdout.fnmatch_lines([said])
    assert result.stdout.str().count("launch") < 2  # no launch was started


def test_a_gate_marker_sets_the_limits_of_a_test(replayed: pytest.Pytester) -> None:
    """The step takes four times as long, and the ok row shows it. Of two markers the nearer one counts."""
    replayed.makepyfile(
        test_it="import pytest\n"
        + TEST.replace("def test", '@pytest.mark.gate("step_ms", floor=9, tolerance=99)\ndef test')
        + '\npytestmark = pytest.mark.gate("step_ms", floor=0.01)\n',
    )
    result = replay(replayed, "--launches", "2", "--confirm", "2", step_ms=32.0)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["mine *−* ok"])


def test_missing_hardware_ends_with_code_4_and_runs_nothing(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--hw", "gaudi2")
    assert result.ret == 4
    assert "Type --hw" in result.stderr.str() and result.stderr.str().count("\n") <= 2
    assert "test_it" not in result.stdout.str()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hw", "*gaudi2*Type --hw *"),
        ("against", "ERROR: --against=gaudi2 cannot be used: it is not a Python interpreter *"),
    ],
)
def test_an_impossible_ini_setting_stops_cases_but_not_other_tests(
    project: pytest.Pytester, name: str, said: str
) -> None:
    """An environment variable has the same effect. A wrong option on the command line ends the run at once."""
    project.makeini(f"[pytest]\npythonpath = .\ntrainbench_{name} = gaudi2\n")
    missed = project.runpytest_subprocess("--report-md", "report.md")
    assert missed.ret == 4
    missed.stderr.fnmatch_lines([said])
    assert "cut off" not in missed.stdout.str() and "Traceback" not in missed.stderr.str()
    project.makepyfile(test_it="def test_plain(): pass\n")
    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_row_that_could_not_be_stored_is_a_crash(project: pytest.Pytester) -> None:
    full = "    raise OSError(28, 'No space left on device')\n"
    project.makeconftest(
        f"from pytest_trainbench.store import baseline\ndef merge(*_):\n{full}baseline.merge = merge\n"
    )
    result = replay(project, "--save-baseline", "--launches", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*= trainbench: 1 crash =*", "mine *crash"])


def test_a_run_that_skips_rows_with_baselines_counts_as_measured() -> None:
    def skipped(reason: str) -> Row:
        return Row(label="one", verdict=Verdict(outcome="skipped", reason=reason))

    assert _all_skipped([skipped("needs 8 devices")])
    assert not _all_skipped([skipped("needs 8 devices"), skipped(HAS_BASELINE)])
    assert not _all_skipped([skipped("needs 8 devices"), Row(label="two", verdict=Verdict(outcome="ok"))])


def test_missing_measures_only_the_cases_without_a_baseline(replayed: pytest.Pytester) -> None:
    before = {path: path.read_text() for path in stored(replayed)}
    with (replayed.path / "test_it.py").open("a") as test:
        test.write("\ndef test_wider(bench, mesh):\n    bench(my_step, mesh=mesh, plan=Plan(max_steps=20), width=32)\n")
    result = replay(replayed, "--missing", "--save-baseline", "--launches", "1")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines_random(["skipped: mine: it has a baseline (--missing)", "saved wider: *, new*"])
    assert len(stored(replayed)) == 2
    assert before.items() <= {path: path.read_text() for path in stored(replayed)}.items()


def test_an_unusable_option_value_ends_with_code_4(project: pytest.Pytester) -> None:
    result = replay(project, "--launches", "0")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --launches=0 cannot be used: it must be a whole number above 0"])


def test_a_broken_baseline_makes_its_row_invalid_in_one_sentence(replayed: pytest.Pytester) -> None:
    (path,) = stored(replayed)
    path.write_text("<<<<<<< HEAD\n")
    result = replay(replayed, "--junit-xml", "junit.xml")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["invalid: mine: *.json cannot be read as a record: *; --save-baseline writes a new *"])
    result.stdout.no_fnmatch_line("*another exception*")
    assert 'name="trainbench_outcome" value="invalid"' in (replayed.path / "junit.xml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--report-md=."], "--report-md: * cannot be written (Is a directory)"),
        (["--baseline-dir=test_it.py", "--save-baseline"], "--baseline-dir: */test_it.py/cpu-* cannot be written (*)"),
    ],
)
def test_an_unwritable_path_is_reported_before_anything_is_measured(
    project: pytest.Pytester, arguments: list[str], said: str
) -> None:
    result = replay(project, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert replay(project, "--collect-only", *arguments).ret == 0


def test_a_session_without_launches_leaves_no_importing_process(project: pytest.Pytester) -> None:
    """Such a process would disturb the next run."""
    project.makeini("[pytest]\npythonpath = .\ntrainbench_preload = slow_import")
    project.makepyfile(
        slow_import="import os, pathlib, time; pathlib.Path('pid-0').write_text(str(os.getpid())); time.sleep(1000)",
        test_it="""
        import time
        from pathlib import Path

        import pytest

        def test_mine(bench):
            until = time.monotonic() + 60
            while not Path("pid-0").exists() and time.monotonic() < until:
                time.sleep(0.05)
            pytest.skip("no need")
        """,
    )
    pytest_run(project).assert_outcomes(skipped=1)
    assert (project.path / "pid-0").exists() and wait_until_gone(project.path) == []


def test_a_case_that_exceeds_a_memory_cap_has_an_oom_baseline(project: pytest.Pytester) -> None:
    project.makepyfile(
        my_steps=STEP.format(slow="").replace(
            "torch.manual_seed(0)", "torch.manual_seed(0); ballast = torch.ones(200_000_000)"
        )
    )
    capped = pytest_run(project, "--memory-cap", "0.5GB", "--save-baseline", "--launches", "1")
    assert capped.ret == 0
    capped.stdout.fnmatch_lines(["*1 oom*", "oom: mine: *can't allocate memory*"])
    again = pytest_run(project, "--memory-cap", "0.5GB", "--launches", "1")
    again.stdout.fnmatch_lines(["oom: mine: out of memory, as in the baseline"])


def test_pytest_benchmark_gets_step_times_and_keeps_its_markers(project: pytest.Pytester) -> None:
    with (project.path / "test_it.py").open("a") as test:
        marker = '@pytest.mark.benchmark(group="wide", timer=time.time)'
        plan = "Plan(min_steps=20, max_steps=20)"
        test.write(f"\nimport time, pytest\n\n{marker}\ndef test_marked(bench, mesh):\n")
        test.write(f"    bench(my_step, mesh=mesh, plan={plan}, width=32)\n")
    result = replay(project, "--benchmark-json", "bm.json", "--launches", "2")
    assert result.ret == 0
    entries = json.loads((project.path / "bm.json").read_text())["benchmarks"]
    assert [(entry["name"], entry["group"]) for entry in entries] == [("test_mine", None), ("test_marked", "wide")]
    for entry in entries:
        assert entry["stats"]["rounds"] >= 20 and 0.004 < entry["stats"]["median"] < 0.5


def test_a_row_without_step_times_gets_no_warning_from_pytest_benchmark(project: pytest.Pytester) -> None:
    project.makepyfile(my_steps=STEP.format(slow="").replace("randn(2, 32,", "randn(2, 10**11,"))
    result = pytest_run(project, "-W", "error")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*trainbench: 1 oom*"])


def test_a_memory_cap_on_a_cpu_applies_when_the_step_is_built(project: pytest.Pytester) -> None:
    """It does not apply earlier, because the threads of the process group could not start under so small a cap."""
    at_once = "torch.manual_seed(0); torch.ones(10**8)"
    project.makepyfile(my_steps=STEP.format(slow="").replace("torch.manual_seed(0)", at_once))
    result = pytest_run(project, "--memory-cap", "0.001GB")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["oom: mine: rank * failed while building the step: RuntimeError: *allocate memory*"])


def test_in_ci_the_summary_has_one_line_a_failure_and_the_log_one_report(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    project.makepyfile(my_steps=STEP.format(slow="").replace("model(x)", "model(None)"))
    result = pytest_run(project, "--junit-xml", "junit.xml")
    assert result.ret == 1
    assert sum("Traceback (most recent call last)" in line for line in result.outlines) == 1
    assert "FAILED test_it.py::test_mine - Failed: crash: mine: rank " in result.stdout.str()
    failure = ElementTree.parse(project.path / "junit.xml").getroot().find(".//failure")
    assert failure is not None and "\n" not in failure.attrib["message"]
    assert "Traceback (most recent call last)" in str(failure.text)


def test_ranks_start_even_if_a_preload_module_cannot_be_imported(project: pytest.Pytester) -> None:
    """One module is missing and one raises. The module after them is imported, in another process than the rank."""
    project.makepyfile(
        raises="raise RuntimeError('planted')",
        named="import os; RAN_IN = os.getpid()",
        my_steps="import os, named; assert named.RAN_IN != os.getpid()\n" + STEP.format(slow=""),
        test_it=TEST.replace("from my_steps import my_step", "my_step = 'my_steps:my_step'"),
    )
    result = pytest_run(project, "-o", "trainbench_preload=no_such_module raises named", "--launches", "1")
    result.stdout.fnmatch_lines(["*trainbench: 1 no-baseline*"])


def test_the_plugin_works_without_pytest_benchmark(project: pytest.Pytester) -> None:
    result = replay(project, "-p", "no:benchmark", "--launches", "1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*trainbench: 1 no-baseline*"])


def test_report_md_writes_the_report_as_markdown(project: pytest.Pytester) -> None:
    replay(project, "--report-md", "summary.md", "--launches", "1")
    text = (project.path / "summary.md").read_text()
    assert text.startswith("## Training benchmark: 1 no-baseline\n") and "| mine " in text
    assert re.search(r"^Measured on .* \(machine \w+\), 20\S+ \S+ UTC, in \d+ s\. ", text, re.MULTILINE)


def test_without_an_ini_file_the_header_names_the_folder_of_baselines(
    replayed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest's root is then the common parent of all paths on the command line, even of other plugins' options."""
    (replayed.path / "tox.ini").unlink()
    project = replayed.mkdir("project")
    for path in ("baselines", "my_steps.py", "test_it.py"):
        (replayed.path / path).rename(project / path)
    replayed.mkdir("elsewhere")
    monkeypatch.chdir(project)
    result = replay(replayed, "test_it.py", "--launches", "1", "--benchmark-storage", "../elsewhere")
    took = f"pytest found no ini file, so {replayed.path} is the project's root"
    result.stdout.fnmatch_lines([f"trainbench: *; 0 baselines in * ({took}); *"])
    result = replay(replayed, "test_it.py", "--launches", "1")
    result.stdout.fnmatch_lines(["trainbench: *; 1 baseline in baselines/cpu-*; launches of each case: 1"])


def test_projects_that_share_a_history_do_not_see_each_others_rows(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is green in one project and red in the other. Neither says anything about the other."""
    monkeypatch.setenv("CI", "true")
    shared = f"--history={project.path / 'kept'}"
    assert replay(project, "--save-baseline", "--launches", "1", shared).ret == 0
    other = project.mkdir("other")
    for name in ("tox.ini", "my_steps.py", "test_it.py"):
        (project.path / name).rename(other / name)
    monkeypatch.chdir(other)
    red = replay(project, "--launches", "1", shared)
    red.stdout.fnmatch_lines(["no-baseline: mine: *", "history: 1 night of these rows *"])
    red.stdout.no_fnmatch_line("  since *")
    assert pytest_trainbench.load_history(project.path / "kept")["project"].nunique() == 2
    again = replay(project, "--launches", "1", shared)
    again.stdout.fnmatch_lines(["  since     20* UTC, 2 runs in a row*"])


def test_runs_kept_by_an_older_version_are_named_once_and_do_not_count(project: pytest.Pytester) -> None:
    """They may belong to another project whose cases have the same names."""
    replay(project, "--launches", "1", "--history", "kept")
    (first,) = (project.path / "kept").glob("*/cpu-*/*.jsonl")
    old = project.path / "kept" / first.parent.name / first.name
    old.parent.mkdir()
    first.rename(old)
    said = replay(project, "--launches", "1", "--history", "kept").stdout
    said.fnmatch_lines([f"history: the runs in {old.parent} do not say their project, * type mv *"])
    replay(project, "--launches", "1", "--history", "kept").stdout.no_fnmatch_line("history: the runs in *")


def test_every_run_is_kept_and_a_slow_drift_is_reported(project: pytest.Pytester) -> None:
    """The earlier nights are copies of the first run, dated back. The oldest is fastest, and each next one slower."""
    replay(project, "--launches", "1", "--history", "kept")
    (first,) = (project.path / "kept").glob("*/cpu-*/*.jsonl")
    text = first.read_text()
    (step_ms,) = re.findall(r'"step_ms": ([\d.]+)', text)
    started = datetime.fromisoformat(json.loads(text.splitlines()[0])["started"])
    for back in range(1, 26):
        day, ratio = started - timedelta(days=back), 0.2 * 1.003 ** (25 - back)
        faster = re.sub(rf'"step_ms": {step_ms}', f'"step_ms": {float(step_ms) * ratio}', text)
        name = f"{day:%Y%m%dT%H%M%SZ}-{back:08x}.jsonl"
        (first.parent / name).write_text(faster.replace(started.isoformat(), day.isoformat()))

    result = replay(project, "--launches", "1", "--history", "kept", "--report-md", "summary.md")
    assert result.ret == 0, "a drift fails no test"
    result.stdout.fnmatch_lines(
        ["drift: mine: step time *% worse since 20* (* nights against * before*)", "history: 1 drift over 26 nights *"]
    )
    (project.path / "summary.md").read_text().index("- drift: mine: step time ")
    last = max(first.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    assert json.loads(last.read_text().splitlines()[-1]) == {"drift": "my_step(width=16) @ dp2"}

    gate = '@pytest.mark.gate("step_ms", floor=50, tolerance=99)'
    project.makepyfile(test_it="import pytest\n" + TEST.replace("def test", f"{gate}\ndef test"))
    said = replay(project, "--launches", "1", "--history", "kept").stdout
    said.fnmatch_lines(["history: no drift over 26 nights *"])


def test_a_report_that_fails_to_write_at_the_end_loses_nothing_else(project: pytest.Pytester) -> None:
    """This happens when a disk fills up during the run."""
    project.makeconftest(
        """
        import shutil
        from pathlib import Path

        import pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish():
            shutil.rmtree("late")
            Path("late").touch()
        """
    )
    result = replay(project, "--launches", "1", "--report-md", "late/report.md")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*trainbench: 1 no-baseline*", "report: *late/report.md cannot be written (*)"])


def test_an_unwritable_history_does_not_stop_the_run(project: pytest.Pytester) -> None:
    (project.path / "kept").write_text("")
    result = replay(project, "--launches", "1", "--history", "kept")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["history: *cannot be written (*); --history DIR names another folder"])


def test_a_row_beyond_the_run_timeout_is_a_timeout(project: pytest.Pytester) -> None:
    result = pytest_run(project, "--run-timeout", "0.01")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["timeout: mine: *"])


def test_a_builder_that_no_other_process_can_import_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="def test_mine(bench, mesh):\n    bench(lambda mesh: None, mesh=mesh)\n")
    result = pytest_run(project)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*cannot be imported by another process: define it at a module's top"])


def test_a_session_without_cases_prints_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="def test_plain(): pass\n")
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*trainbench:*")
