"""``--against``: what its value may name, and how a side proves that it runs the checkout of its commit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from repositories import git, two_commits

from pytest_trainbench.launch.checkout import Checkout, Other, find, import_path
from pytest_trainbench.project.git import git as plain_git
from pytest_trainbench.rank.imported_from import check_modules


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return two_commits(tmp_path / "repository")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_git_ignores_variables_of_hooks_and_keeps_the_machines_settings(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's git settings may say that another user's checkout is safe, or that large files are not fetched."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    settings = tmp_path / "gitconfig"
    settings.write_text("[alias]\n\tmine = rev-parse main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert plain_git(repository, "mine") == plain_git(repository, "rev-parse", "main")


def test_a_commit_name_is_looked_up_in_the_enclosing_repository(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD~1")
    for name in ("main~1", commit, commit[:8]):
        assert find(name, repository / "part") == Other(
            name=f"{name} ({commit[:12]})", python=sys.executable, commit=commit, repository=repository
        )


def test_an_executable_is_an_interpreter_and_its_link_is_not_resolved(tmp_path: Path) -> None:
    """The interpreter of a virtual environment is a link. Its target is another environment's interpreter."""
    assert find(sys.executable, tmp_path) == Other(name=sys.executable, python=sys.executable)


def test_an_interpreter_may_print_a_greeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert find(sys.executable, tmp_path).python == sys.executable


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("echo hello", "it is an executable file, but it did not run as a Python interpreter"),
        ("true", "it is an executable file, but it did not run as a Python interpreter"),
        ("exit 3", "it is an executable file, but it did not run as a Python interpreter"),
        (
            """echo '{"version": [3, 9], "torch": true, "path": []}'""",
            "it is Python 3.9, but pytest-trainbench needs 3.10 or newer",
        ),
        (
            """echo '{"version": [3, 12], "torch": false, "path": []}'""",
            "it has no torch: type PATH -m pip install torch nvidia-ml-py",
        ),
    ],
)
def test_an_executable_that_cannot_train_is_refused(body: str, sentence: str, tmp_path: Path) -> None:
    path = script(tmp_path / "python", body)
    with pytest.raises(ValueError) as error:
        find(str(path), tmp_path)
    assert str(error.value).replace(str(path), "PATH") == sentence


def test_a_name_of_neither_interpreter_nor_commit_is_refused_with_reasons(repository: Path, tmp_path: Path) -> None:
    tried = "it is not a Python interpreter (no executable file has this path)"
    shallow = "(in a shallow clone, git fetch gets more commits)"
    for name in ("nonsense", "part/mine.py", "-x"):
        with pytest.raises(ValueError) as error:
            find(name, repository)
        assert str(error.value) == f"{tried}, and not a commit, branch or tag of {repository} {shallow}"
    with pytest.raises(ValueError) as error:
        find("main", tmp_path)
    assert str(error.value).startswith(
        f"{tried}, and {tmp_path} is in no git repository that can be read, so it is not a commit either"
        " (git rev-parse failed: fatal: not a git repository "
    )


def test_a_repository_that_git_refuses_shows_gits_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example in a container whose user does not own the repository. The first line of git's error is shown."""
    refuses = "echo \"fatal: detected dubious ownership in repository at '/x'\" >&2; echo mend >&2; exit 128"
    script(tmp_path / "git", refuses)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ValueError, match=r"\(git rev-parse failed: fatal: detected dubious ownership in .* '/x'\)$"):
        find("main", tmp_path)


def checkout(repository: Path, at: Path) -> Checkout:
    found = find("main~1", repository).checkout(at)
    assert found is not None
    return found


def test_a_checkout_has_its_commits_files_and_is_removed_completely(repository: Path, tmp_path: Path) -> None:
    made = checkout(repository, tmp_path / "at")
    for broken in ("", ".git"):
        made.add()
        assert (made.at / "part" / "mine.py").read_text() == "old"
        assert (repository / "part" / "mine.py").read_text() == "new"
        (made.at / "untracked").touch()
        if broken:
            (made.at / broken).unlink()
        made.remove()
        made.remove()
        assert not made.at.exists()
        assert git(repository, "worktree", "list").count("\n") == 0


def test_a_checkout_that_cannot_be_made_says_why(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    (tmp_path / "at" / "full").touch()
    with pytest.raises(ValueError, match=r"^git worktree failed: fatal: .*already exists"):
        checkout(repository, tmp_path / "at").add()


def test_import_path_maps_the_working_tree_to_the_checkout(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(repository)
    made = checkout(repository, tmp_path / "at")
    own = next(entry for entry in sys.path if entry.endswith("site-packages"))
    elsewhere = str(tmp_path / "elsewhere")
    path = [str(repository), own, str(tmp_path / "link" / "part"), elsewhere]
    assert import_path(path, made) == (str(made.at), str(made.at / "part"), elsewhere)
    assert import_path(path, None) == (str(repository), str(tmp_path / "link" / "part"), elsewhere)
    monkeypatch.setattr(sys, "prefix", str(repository / "part"))
    assert import_path(path, made)[1] == path[2], "an environment in a folder of the repository is none of its files"


def test_a_process_that_imported_the_checkout_passes(repository: Path, tmp_path: Path) -> None:
    made = checkout(repository, tmp_path / "at")
    made.add()
    files = {
        "part.mine": str(made.at / "part" / "mine.py"),
        "os": os.__file__,
        "built_in": None,
        "pytest_trainbench": str(Path(check_modules.__code__.co_filename)),
        "pytest": pytest.__file__,
    }
    check_modules(files, repository, made.at)


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("part.mine", "repository/part/mine.py", "part.mine was imported from PATH, not from"),
        ("mypkg", "installed/mypkg/__init__.py", "mypkg was imported from PATH, not from"),
        ("other", "installed/other.py", "no imported module comes from"),
    ],
    ids=["from the working tree", "installed as well", "nothing of it"],
)
def test_a_process_that_did_not_import_the_checkout_is_refused(
    name: str, file: str, words: str, repository: Path, tmp_path: Path
) -> None:
    made = checkout(repository, tmp_path / "at")
    made.add()
    (made.at / "src" / "mypkg").mkdir(parents=True)
    (made.at / "src" / "mypkg" / "__init__.py").touch()
    with pytest.raises(ImportError) as error:
        check_modules({name: str(tmp_path / file), "os": os.__file__}, repository, made.at)
    mend = "add its folder to pythonpath in the ini file, so that both sides import it the same way"
    assert str(error.value).replace(str(tmp_path / file), "PATH") == f"{words} the commit to compare with: {mend}"
