"""A record names the code that made it, without any setting of the project. These tests run whole pytest sessions."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from own_project import STEP, pytest_run, stored

from pytest_trainbench.plugin import OF_THIS_CODE
from pytest_trainbench.project.sources import digests, parse

ZOO = {
    "zoo/__init__.py": """
from pkgutil import resolve_name

MODELS = {"first": dict(builder="zoo.first:build"), "second": dict(builder="zoo.second:build")}

def build(name, width):
    return resolve_name(MODELS[name]["builder"])(width)
""",
    "zoo/first.py": "import torch\n\ndef build(width):\n    return torch.nn.Linear(width, width)\n",
    "zoo/second.py": "import torch\n\ndef build(width):\n    return torch.nn.Linear(width, width, bias=True)\n",
    "my_steps.py": "from zoo import build\n"
    + STEP.format(slow="")
    .replace("my_step(mesh, *, width)", "my_step(mesh, *, width, model)")
    .replace("torch.nn.Linear(width, width)", "build(model, width)"),
    "test_it.py": """
import pytest
from pytest_trainbench import Plan
from my_steps import my_step

@pytest.mark.parametrize("model", ["first", "second"])
def test_mine(bench, mesh, model):
    bench(my_step, mesh=mesh, plan=Plan(min_steps=20, max_steps=20), width=16, model=model)

def test_plain(): ...
""",
    # Every rank starts with the modules that the fork server imported.
    "pytest.ini": "[pytest]\npythonpath = .\ntrainbench_preload = torch.utils.flop_counter zoo.first\n",
}

BASELINES: dict[str, str] = {}
"""The files that one run stored, by path."""


@pytest.fixture
def zoo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of two models, each with a baseline. Its working tree is dirty from the beginning."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for path, text in ZOO.items():
        (pytester.path / path).parent.mkdir(exist_ok=True)
        (pytester.path / path).write_text(text)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com"]
    # The commit is the same in every test.
    dated = os.environ | {f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")}
    for arguments in (["init"], ["add", "zoo"], ["commit", "--message", "first"]):
        subprocess.run([*git, *arguments], cwd=pytester.path, env=dated, check=True, capture_output=True)
    if not BASELINES:
        assert pytest_run(pytester, "--save-baseline", "--launches", "1").ret == 0
        BASELINES.update({str(path.relative_to(pytester.path)): path.read_text() for path in stored(pytester)})
    for path, text in BASELINES.items():
        (pytester.path / path).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / path).write_text(text)
    return pytester


def touch(project: pytest.Pytester, path: str, old: str, new: str) -> None:
    text = (project.path / path).read_text()
    assert old in text
    (project.path / path).write_text(text.replace(old, new))


ONE_MORE = "loss.backward(); torch.distributed.all_reduce(torch.ones(8))"
"""One more collective, so that a row is red whatever its step time is."""


def test_a_record_lists_only_the_files_that_its_step_uses(zoo: pytest.Pytester) -> None:
    """This holds although every rank starts with ``zoo.first`` imported. Each digest is made for the record's case."""
    files = {record["label"]: record["code"] for record in (json.loads(path.read_text()) for path in stored(zoo))}
    own = {f"mine[{model}]": ["my_steps.py", "zoo/__init__.py", f"zoo/{model}.py"] for model in ("first", "second")}
    assert {label: list(code) for label, code in files.items()} == own
    for label, code in files.items():
        sources = {path: parse(path, ZOO[path].encode()) for path in code}
        assert code == digests(sources, frozenset({label[5:-1]}))


def test_no_baseline_is_stale_while_the_code_is_the_same(zoo: pytest.Pytester) -> None:
    """Changed comments and an added model make no row stale either. A ``--stale`` run without stale rows passes."""
    touch(zoo, "zoo/second.py", "import torch\n", '"""Another one."""\n\nimport torch  # again\n')
    touch(zoo, "zoo/__init__.py", "MODELS = {", 'MODELS = {"third": dict(builder="zoo.third:build"), ')
    listed = pytest_run(zoo, "--collect-only")
    assert "other code" not in listed.stdout.str()
    result = pytest_run(zoo, "--stale", "--save-baseline")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["collected 3 items / 3 deselected*", "trainbench: none of these rows is stale (--stale)"]
    )


def test_stale_selects_only_the_rows_whose_code_changed(zoo: pytest.Pytester) -> None:
    touch(zoo, "zoo/second.py", "bias=True", "bias=False")
    listed = pytest_run(zoo, "--collect-only", "--stale", "-q")
    listed.stdout.fnmatch_lines(
        [
            "trainbench: 1 baseline was made by other code (--stale runs these rows)",
            "trainbench:   mine[[]second[]]: zoo/second.py",
            "test_it.py::test_mine[[]second[]]",
        ]
    )
    assert listed.stdout.str().count("::") == 1
    result = pytest_run(zoo, "--stale", "--save-baseline", "--launches", "1", "-p", "no:benchmark")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(
        ["trainbench: 1 baseline was made by other code (--stale runs these rows)", "*trainbench: 1 saved*"]
    )
    assert "other code" not in pytest_run(zoo, "--collect-only").stdout.str(), "it was measured anew"


def test_stale_also_selects_baselines_that_do_not_name_their_code(zoo: pytest.Pytester) -> None:
    for path in stored(zoo):
        record = json.loads(path.read_text())
        if record["label"] == "mine[first]":
            del record["code"]  # as in a file of an older version
            path.write_text(json.dumps(record))
    touch(zoo, "zoo/second.py", "bias=True", "bias=False")
    listed = pytest_run(zoo, "--collect-only", "--stale")
    listed.stdout.fnmatch_lines(
        [
            "collected 3 items / 1 deselected / 2 selected",
            "trainbench: 1 baseline was made by other code, and 1 baseline does not say which code made it (--stale *)",
            "trainbench:   mine[[]second[]]: zoo/second.py",
            "trainbench:   mine[[]first[]]: not known",
        ]
    )


def test_a_row_is_skipped_if_only_its_name_is_stale(zoo: pytest.Pytester) -> None:
    """Rows are selected by name, before their cases are known."""
    touch(zoo, "zoo/second.py", "bias=True", "bias=False")
    touch(zoo, "test_it.py", "model=model", 'model="first"')
    result = pytest_run(zoo, "--stale", "-rs")
    result.assert_outcomes(skipped=1, deselected=2)
    result.stdout.fnmatch_lines([f"*{OF_THIS_CODE}"])


def test_a_red_row_names_changed_files_when_the_commit_is_the_same(zoo: pytest.Pytester) -> None:
    """Two dirty trees of one commit have the same recorded environment."""
    touch(zoo, "my_steps.py", "loss.backward()", ONE_MORE)
    report = ["--launches", "1", "--floor", "90%", "--report-md", "report.md"]
    result = pytest_run(zoo, "-k", "first", *report)
    assert result.ret == 1
    red = [
        "regression: mine[[]first[]]: collectives a step*",
        "  your code 1 of 3 files that this step imports differs from the baseline's: my_steps.py",
        "  differs   nothing in the recorded environment",
    ]
    result.stdout.fnmatch_lines(red)
    pytest.LineMatcher((zoo.path / "report.md").read_text().splitlines()).fnmatch_lines(red)


def test_the_report_names_passed_rows_with_stale_baselines_once(zoo: pytest.Pytester) -> None:
    touch(zoo, "my_steps.py", "0.1 *", "0.11 *")
    result = pytest_run(zoo, "--launches", "1", "--floor", "90%", "-p", "no:benchmark")
    assert result.ret == 0, "staleness changes no outcome"
    result.stdout.fnmatch_lines(
        ["baseline of other code: mine[[]first[]], mine[[]second[]]: my_steps.py; --stale --save-baseline measures *"]
    )


def test_a_record_of_an_oom_case_names_its_code(zoo: pytest.Pytester) -> None:
    """Otherwise ``--stale`` would select it every time."""
    touch(zoo, "my_steps.py", "x, y =", "raise MemoryError\n    x, y =")
    assert pytest_run(zoo, "-k", "first", "--launches", "1", "--results", "out").ret == 1
    (path,) = (zoo.path / "out").glob("*.json")
    record = json.loads(path.read_text())
    assert record["launches"][0]["outcome"] == "oom"
    assert list(record["code"]) == ["my_steps.py", "zoo/__init__.py", "zoo/first.py"]
