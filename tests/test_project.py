"""All clones of a project have one project name, and no other project has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from repositories import git, two_commits

from pytest_trainbench.project.name import project_name, repository_of


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return two_commits(tmp_path / "repository")


def clone(repository: Path, to: Path, url: str, *options: str) -> Path:
    """Clone to another path, as if from ``url``."""
    git(repository, "clone", *options, f"file://{repository}", str(to))
    git(to, "remote", "set-url", "origin", url)
    return to


def test_all_clones_of_one_remote_are_one_project_even_shallow_ones(repository: Path, tmp_path: Path) -> None:
    whole = clone(repository, tmp_path / "whole", "git@github.com:we/speed.git")
    shallow = clone(repository, tmp_path / "work" / "_1", "https://x:token@GitHub.com/we/speed", "--depth", "1")
    assert project_name(whole) == project_name(shallow) and re.fullmatch("speed-[0-9a-f]{8}", project_name(whole))
    assert project_name(whole / "part") == project_name(shallow / "part") != project_name(whole)
    assert project_name(clone(repository, tmp_path / "fork", "git@github.com:others/speed.git")) != project_name(whole)


def test_a_second_remote_does_not_change_the_project(repository: Path, tmp_path: Path) -> None:
    one = clone(repository, tmp_path / "one", "git@github.com:we/speed.git")
    before = project_name(one)
    git(one, "remote", "add", "also", "git@github.com:others/speed.git")
    assert project_name(one) == before


def test_without_a_remote_all_worktrees_of_a_folder_are_one_project(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", str(tmp_path / "beside"))
    assert project_name(repository) == project_name(tmp_path / "beside")
    assert project_name(repository / "part") == project_name(tmp_path / "beside" / "part") != project_name(repository)
    git(repository, "clone", str(repository), str(tmp_path / "clone"))
    assert project_name(tmp_path / "clone") == project_name(repository)


def test_outside_git_the_resolved_folder_is_the_project(tmp_path: Path) -> None:
    for folder in ("one/speed", "two/speed"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "one" / "speed")
    assert (
        project_name(tmp_path / "one" / "speed")
        == project_name(tmp_path / "link")
        != project_name(tmp_path / "two" / "speed")
    )


def test_git_dir_of_another_repository_does_not_change_the_project(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = project_name(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    assert project_name(tmp_path) == before


def test_a_given_name_is_the_project_and_a_valid_folder_name(tmp_path: Path) -> None:
    assert (
        project_name(tmp_path, "Team: speed")
        == project_name(tmp_path / "elsewhere", "Team: speed")
        != project_name(tmp_path, "Team: spEed")
    )
    assert re.fullmatch("Team-speed-[0-9a-f]{8}", project_name(tmp_path, "Team: speed"))
    assert re.fullmatch("project-[0-9a-f]{8}", project_name(Path("/"))) and re.fullmatch(
        "x-.{8}", project_name(tmp_path, "..x")
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/we/speed",
        "https://github.com/we/speed.git/",
        "https://user:p%40ss@github.com:443/we/speed.git",
        "ssh://git@GitHub.com:22/we/speed.git",
        "git@github.com:we/speed.git",
        "github.com:/we/speed",
    ],
)
def test_all_spellings_of_a_remote_url_are_one_remote(url: str) -> None:
    assert repository_of(url, Path("/tree")) == "github.com/we/speed"


@pytest.mark.parametrize("url", ["/srv/speed.git", "file:///srv/speed.git", "../srv/speed"])
def test_a_remote_may_be_a_folder_of_this_machine(url: str) -> None:
    assert repository_of(url, Path("/tree")) == "/srv/speed"
