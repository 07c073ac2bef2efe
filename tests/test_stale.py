"""Which baselines are of other code, compared with a working tree and with a commit."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import case, record

from pytest_trainbench import stale
from pytest_trainbench.project.sources import Tree
from pytest_trainbench.schema.record import Record
from pytest_trainbench.stale import left_main, main
from pytest_trainbench.store import baseline
from pytest_trainbench.store.other_code import look

FILES = {"models.py": 'MODELS = {"a": Model(1), "b": Model(2)}\n', "steps.py": "STEP = 1\n"}
"""The files of a project."""


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def of(model: str, **code: Any) -> Record:
    """A record of this model. Its code is the project's files, unless ``code`` says otherwise."""
    one = record(label=f"sharding[{model}]", of=case(model=model))
    read = {path: text.encode() for path, text in FILES.items()}.get
    return dataclasses.replace(one, **{"code": Tree(read).digests(FILES, one.case.params), **code})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository on ``main`` with baselines of its code."""
    for path, text in FILES.items():
        (tmp_path / path).write_text(text)
    for one in (of("a"), of("b"), of("c", code={})):
        baseline.merge(tmp_path / "baselines", {one.case.id: one})
    git(tmp_path, "init", "--initial-branch", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_row_is_stale_if_code_that_it_uses_changed(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).write_text(text.replace("Model(2)", "Model(3)"))
    a, b, c = of("a"), of("b"), of("c", code={})
    found = look([a, b, c], Tree.of(tmp_path))
    assert found.other == {b.case.id: ["models.py"]} and found.silent == {c.case.id}
    assert [one.case.id in found for one in (a, b, c)] == [False, True, True]
    assert str(found) == (
        "1 baseline was made by other code, and 1 baseline does not say which code made it (--stale runs these rows)"
    )
    assert found.lines() == ["sharding[b]: models.py", "sharding[c]: not known"]


def test_no_stale_rows_print_nothing_and_many_print_a_short_list(tmp_path: Path) -> None:
    assert str(look([], Tree.of(tmp_path))) == ""
    many = look([of(f"m{number}") for number in range(25)], Tree.of(tmp_path))
    assert str(many) == "25 baselines were made by other code (--stale runs these rows)"
    assert many.lines()[0] == "sharding[m0]: models.py, steps.py" and many.lines()[-1] == "and 5 more"
    assert len(many.lines()) == 21


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    main(arguments)
    return capsys.readouterr().out.splitlines()


SILENT = "1 stored baseline does not say which code made it, so this change may make more rows stale"


def test_the_command_names_the_rows_that_a_change_makes_stale(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "--since", "HEAD") == ["this change makes no stored row stale", SILENT]
    (project / "models.py").write_text(FILES["models.py"].replace("Model(2)", "Model(3)"))
    red = [
        "this change makes 1 stored row of h200-sxm stale (models.py): sharding[b]; measure them again: pytest"
        " bench_tests --hw h200-sxm --stale --save-baseline",
        SILENT,
    ]
    assert said(capsys, "bench_tests", "--since", "HEAD") == red
    git(project, "commit", "--all", "--message", "second")
    assert said(capsys, "bench_tests") == red, "on main it is held against the commit before"
    assert said(capsys, "--since", "HEAD")[0] == "this change makes no stored row stale", "of old it was stale before"
    git(project, "switch", "--create", "branch")
    git(project, "commit", "--allow-empty", "--message", "third")
    assert left_main(project) == git(project, "rev-parse", "main")


def test_an_unknown_commit_does_not_fail_the_build(
    project: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    unknown = "cannot tell which stored rows this change makes stale: "
    assert said(capsys, "--since", "gone")[0].startswith(f"{unknown}gone is not a commit of a repository here")
    assert said(capsys)[0].startswith(f"{unknown}git knows neither where this branch left main nor")
    monkeypatch.chdir(tmp_path_factory.mktemp("bare"))
    assert said(capsys)[0].startswith(unknown)


def test_the_command_needs_no_installed_package(project: Path) -> None:
    """CI runs it in an environment without packages."""
    plugin = Path(stale.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pytest_trainbench.stale", "--since", "HEAD"],
        cwd=project, env={"PYTHONPATH": str(plugin), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout.splitlines()[0], done.stderr) == ("this change makes no stored row stale", "")
