"""If a row cannot be compared, the report says why, and CI fails. These tests run whole pytest sessions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from own_project import STEP, TEST, pytest_run, replay, stored
from samples import failed, record

import pytest_trainbench


def edit(project: pytest.Pytester, **replaced: Any) -> None:
    """Change fields of the stored baseline."""
    (path,) = stored(project)
    path.write_text(json.dumps({**json.loads(path.read_text()), **replaced}))


NO_BASELINE = "*no-baseline: mine: there is no baseline for this case on this hardware; --save-baseline stores one"


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_missing_baseline_passes_locally_and_fails_in_ci(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    result = replay(project, "--launches", "1", "--report-md", "report.md")
    assert result.ret == code
    result.stdout.fnmatch_lines([NO_BASELINE])
    assert ("<details open><summary>no-baseline: mine:" in (project.path / "report.md").read_text()) == bool(code)


def test_a_failing_improvement_shows_how_to_accept_it_and_since_when(replayed: pytest.Pytester) -> None:
    edit(replayed, launches=record(failed("oom")).to_json()["launches"])
    strict = ["--launches", "1", "--history", "kept", "--fail-on-improvement", "--report-md", "report.md"]
    assert replay(replayed, *strict).ret == 1
    result = replay(replayed, *strict)
    assert result.ret == 1
    red = [
        "improvement: mine: fits in memory where the baseline did not",
        "  since     20*-*-* UTC, 2 runs in a row; the history has no green run",
        "  accept    python -m pytest test_it.py::test_mine *--save-baseline",
    ]
    result.stdout.fnmatch_lines(red)
    said = (replayed.path / "report.md").read_text().splitlines()
    pytest.LineMatcher(said).fnmatch_lines([f"<details open><summary>{red[0]}</summary>", *red])


def test_a_renamed_test_keeps_its_baseline(replayed: pytest.Pytester) -> None:
    (replayed.path / "test_it.py").rename(replayed.path / "test_renamed.py")
    (replayed.path / "test_renamed.py").write_text(TEST.replace("test_mine", "test_yours"))
    result = replay(replayed, "--launches", "1")
    result.stdout.fnmatch_lines(["yours * ?[0-9]*% *≥*"])
    result.stdout.no_fnmatch_line("*no-baseline*")


@pytest.mark.parametrize(
    ("before", "after", "apart"),
    [
        ("width=16", "width=32", "width 16 → 32"),
        ("def test_mine", "import pytest\n@pytest.mark.mesh(dp=1)\ndef test_mine", "mesh dp2 → dp1"),
    ],
    ids=["another parameter", "another number of devices"],
)
def test_a_changed_case_has_no_baseline_and_names_the_change(
    replayed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, before: str, after: str, apart: str
) -> None:
    """The report names a stored case with the same label and the difference, so that nobody looks for a lost save."""
    monkeypatch.setenv("CI", "true")
    replayed.makepyfile(test_it=TEST.replace(before, after))
    result = replay(replayed, "--launches", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"{NO_BASELINE}; the stored mine is another case: {apart}"])


def test_a_baseline_of_another_device_is_incomparable(replayed: pytest.Pytester) -> None:
    edit(replayed, environment={"must_match": {"device": "NVIDIA H200"}, "suspects": {}, "machine": ""})
    result = replay(replayed, "--launches", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["incomparable: mine: the baseline is of other conditions: device was NVIDIA H200, is *"]
    )


def test_a_step_that_does_less_work_is_incomparable_and_not_faster(saved: pytest.Pytester) -> None:
    saved.makepyfile(my_steps=STEP.format(slow=" / 2").replace("32", "16"))
    result = pytest_run(saved, "--launches", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["incomparable: mine: samples a step: 64, now 32: the step does other work than the baseline's"]
    )


def test_an_edited_baseline_is_refused_in_one_sentence(replayed: pytest.Pytester) -> None:
    (path,) = stored(replayed)
    path.write_text(path.read_text().replace('"width": 16', '"width": 17'))
    result = replay(replayed, "--launches", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*cannot be read as a record: its id*the file was edited by hand*"])


def test_the_report_flags_a_baseline_that_is_too_old(replayed: pytest.Pytester) -> None:
    edit(replayed, created="2020-01-02T03:04:05+00:00")
    replay(replayed, "--launches", "1").stdout.fnmatch_lines(
        ["renew the baseline of mine: it is more than 90 days old; --save-baseline stores a new one"]
    )


def test_an_empty_history_is_reported(replayed: pytest.Pytester) -> None:
    replay(replayed, "--launches", "1", "--history", "kept").stdout.fnmatch_lines(
        ["history: 1 night of these rows on this machine; drift detection needs 13 (kept/test_an_*-????????)"]
    )


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "torch.manual_seed(0)",
            "raise RuntimeError('planted')",
            "crash: mine: rank * failed while building the step: RuntimeError: planted",
        ),
        ("return loss.detach()", "return loss.detach() * float('nan')", "invalid: mine: the loss of step 1 is nan"),
        (
            "torch.manual_seed(0)",
            "if mesh.get_rank() == 1: import os; os._exit(0)",
            "crash: mine: rank *",
        ),
    ],
    ids=["crash", "NaN", "missing rank"],
)
def test_a_failed_launch_fails_the_test_and_is_not_saved(
    project: pytest.Pytester, before: str, after: str, said: str
) -> None:
    project.makepyfile(my_steps=STEP.format(slow="").replace(before, after))
    result = pytest_run(project, "--save-baseline", "--launches", "1")
    assert result.ret == 1
    result.stdout.fnmatch_lines([said])
    assert stored(project) == []


@pytest.mark.parametrize(
    ("options", "stored_too"), [([], ""), (["--save-baseline"], "; its baseline was stored before that")]
)
def test_a_row_is_invalid_if_its_test_fails_after_the_measurement(
    project: pytest.Pytester, options: list[str], stored_too: str
) -> None:
    """The test fails in its own body or in the teardown of a fixture."""
    if stored_too:
        late = "import pytest\n@pytest.fixture\ndef late():\n    yield\n    assert False, 'planted'\n"
        project.makepyfile(test_it=late + TEST.replace("(bench, mesh)", "(bench, mesh, late)"))
    else:
        project.makepyfile(test_it=TEST + "    assert mesh.dp == 3, 'planted'\n")
    kept = ["--junit-xml", "junit.xml", "--report-md", "r.md", "--history", "kept"]
    result = replay(project, "--launches", "1", "--confirm", "0", *options, *kept)
    assert result.ret == 1
    assert pytest_trainbench.load_history(project.path / "kept")["outcome"].tolist() == ["invalid"]
    result.stdout.fnmatch_lines(["*= trainbench: 1 invalid =*", "mine *invalid"])
    said = f"its test failed after it was measured: AssertionError: planted{stored_too}"
    assert said in (project.path / "r.md").read_text()
    junit = (project.path / "junit.xml").read_text()
    assert re.findall('name="trainbench_outcome" value="([a-z-]+)"', junit) == ["invalid"]


def test_every_case_fails_under_xdist_even_a_skipped_one(project: pytest.Pytester) -> None:
    """Otherwise no report would show its skip, and a run of skipped cases would pass."""
    skips = "import pytest\n\n@pytest.mark.skip\ndef test_yours(bench): pass\n"
    skips += "\n@pytest.mark.mesh(dp=8)\ndef test_theirs(bench, mesh): pass\n"
    project.makepyfile(test_it=TEST + skips)
    result = pytest_run(project, "-n", "1", "--report-md", "report.md", "-p", "no:benchmark")
    result.assert_outcomes(errors=3)
    assert result.ret == 1
    said = "*training benchmarks disturb each other if they run in parallel: turn pytest-xdist off with -n 0"
    result.stdout.fnmatch_lines([said] * 3)
    assert not (project.path / "report.md").exists()


def test_a_test_that_requests_bench_after_collection_fails(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="def test_late(request): request.getfixturevalue('bench')\n")
    result = pytest_run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["make bench an argument of the test *"])


def test_tests_without_bench_run_under_xdist(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="def test_plain(): pass\n")
    pytest_run(project, "-n", "1").assert_outcomes(passed=1)


def test_a_selection_without_tests_does_not_pass(project: pytest.Pytester) -> None:
    assert pytest_run(project, "-k", "zero17").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_ci_fails_if_no_case_could_be_measured(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    project.makepyfile(
        test_it="import pytest\n\n@pytest.mark.mesh(dp=8)\ndef test_mine(bench, mesh):\n    raise AssertionError\n"
    )
    result = replay(project)
    assert result.ret == code
    result.stdout.fnmatch_lines(["skipped: mine: needs 8 ranks, and this CPU gets 4: --devices 8 starts them"])


@pytest.mark.parametrize(("ci", "share", "code"), [("true", "50%", 1), ("true", "100%", 0), ("", "50%", 0)])
def test_ci_fails_if_most_rows_judged_no_time(
    replayed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, share: str, code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    noisy = TEST.replace("def test", '@pytest.mark.gate("step_ms", floor=1e-5, tolerance=2e-5)\ndef test')
    replayed.makepyfile(test_it="import pytest\n" + noisy)
    kept = ["--junit-xml", "junit.xml", "--report-md", "r.md", "--unjudged-share", share]
    result = replay(replayed, "--confirm", "0", *kept)
    line = "1 row: 0 judged its time, 1 only counts and memory"
    line += "; more than 50% judged no time, so the run fails where CI is set (--unjudged-share)" * code
    assert result.ret == code
    result.stdout.fnmatch_lines(["*trainbench: 1 noisy*", line])
    assert (replayed.path / "r.md").read_text().splitlines()[2] == line
    assert f'<property name="trainbench_judged" value="{line}" />' in (replayed.path / "junit.xml").read_text()
