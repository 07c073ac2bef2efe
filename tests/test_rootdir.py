"""pytest may take an option's value for a test path. The run stops only if pytest then found another root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_trainbench.project.rootdir import Root, find

LAYOUTS: dict[str, dict[str, str]] = {
    "no ini file": {},
    "an ini file": {"mine/pytest.ini": ""},
    "a table": {"mine/pyproject.toml": "[project]\nname = 'x'\n\n[tool.pytest.ini_options]\n"},
    "no table": {"mine/pyproject.toml": "[project]\nname = 'x'\n"},
    "a section": {
        "mine/tox.ini": "[tox]\n[pytest]\n",
        "mine/tests/setup.cfg": "[metadata]\n",
        "other/tox.ini": "[tox]\n",
    },
    "another project": {"mine/setup.cfg": "[tool:pytest]\n", "other/pytest.ini": "[pytest]\n"},
    "a setup.py": {"mine/setup.py": ""},
    "above both": {"tox.ini": "[pytest]\n", "mine/pyproject.toml": "[tool.black]\n"},
}


@pytest.fixture
def mine(pytester: pytest.Pytester) -> Path:
    """A project's folder, with another project's folder beside it."""
    for name in ("mine/tests/test_it.py", "other/x.md"):
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text("def test_plain(): pass\n")
    return pytester.path / "mine"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_our_root_search_finds_the_same_root_as_pytest(
    mine: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    for name, text in LAYOUTS[layout].items():
        (pytester.path / name).write_text(text)
    monkeypatch.chdir(mine)
    for paths in (
        [],
        ["tests"],
        ["../other/x.md"],
        ["tests/test_it.py::test_plain", "../other"],
        ["../other", "tests"],
    ):
        config = pytester.parseconfig("-p", "no:trainbench", *paths)
        assert find(paths, folder=mine) == Root(path=config.rootpath, ini=config.inipath), paths
        config = pytester.parseconfig("-p", "no:trainbench", "--rootdir=..", *paths)
        assert find(paths, folder=mine, given=mine.parent) == Root(path=config.rootpath, ini=config.inipath), paths


def collect(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    return project.runpytest_subprocess("--hw", "cpu", "--collect-only", *words)


@pytest.fixture
def project(mine: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose conftest.py needs its ini file, with another project beside it."""
    (mine / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = 'lib'\n")
    (mine / "lib").mkdir()
    (mine / "lib" / "of_mine.py").touch()
    (mine / "conftest.py").write_text("import of_mine\n")
    monkeypatch.chdir(mine)
    return pytester


@pytest.mark.parametrize("flag", ["--report-md", "--baseline-dir", "--history", "--results", "--against"])
def test_a_value_that_changes_the_root_stops_the_run_and_names_the_fix(project: pytest.Pytester, flag: str) -> None:
    value = project.path / "other" / ("x.md" if flag == "--report-md" else "")
    result = collect(project, flag, str(value))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.str() == (
        f"ERROR: {flag} {value} made pytest use {project.path} as the project's root instead of"
        f" {project.path / 'mine'}: write {flag}={value}\n"
    )
    if flag != "--against":  # --against takes no folder
        assert collect(project, f"{flag}={value}").ret == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--report-md", "../other/x.md", "tests"),  # pytest searches from tests too
        ("--report-md", "../other/new.md"),
        ("--results", "tests"),
        ("--report-md", "../other/x.md", "-c", "pyproject.toml"),
    ],
)
def test_a_value_that_keeps_the_root_is_accepted(project: pytest.Pytester, words: Sequence[str]) -> None:
    result = collect(project, *words)
    assert "made pytest" not in result.stderr.str()
    result.stdout.fnmatch_lines([f"rootdir: {project.path / 'mine'}"])


def test_a_value_in_pytest_addopts_is_noticed_too(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--report-md '../other/x.md'")
    result = collect(project, "--results", "new")
    result.stderr.fnmatch_lines(["ERROR: --report-md ../other/x.md made pytest *: write --report-md=../other/x.md"])


def test_a_given_rootdir_does_not_hide_another_ini_file(project: pytest.Pytester) -> None:
    result = collect(project, "--rootdir", ".", "--report-md", "../other/x.md")
    result.stderr.fnmatch_lines(
        [f"ERROR: * made pytest read no ini file instead of {project.path}/mine/pyproject.toml: write --report-md=*"]
    )
