"""What the project promises about itself: pins, workflows and metadata."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Any]:
    # BaseLoader keeps the key `on` a word; YAML 1.1 makes it true.
    workflow = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    assert isinstance(workflow, dict)
    return workflow


def steps(workflow: dict[str, Any], action: str = "") -> Iterator[dict[str, Any]]:
    """The steps of every job, or those whose `uses` starts with `action`."""
    for job in workflow["jobs"].values():
        yield from (step for step in job["steps"] if step.get("uses", "").startswith(action))


def pins() -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def test_the_three_workflows_exist() -> None:
    assert [path.name for path in WORKFLOWS] == ["baselines.yml", "ci.yml", "nightly.yml"]


@each_workflow
def test_actions_are_pinned_by_commit_with_their_version_in_a_comment(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if re.match(r"\s*(- )?uses:", line)]
    assert len(lines) == sum("uses" in step for step in steps(load(path)))
    pinned = re.compile(r"\s*(- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []


@each_workflow
def test_no_self_hosted_runner_is_reachable_from_a_pull_request(path: Path) -> None:
    workflow = load(path)
    if not any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values()):
        return
    assert set(workflow["on"]) <= {"schedule", "workflow_dispatch"}
    own_machines = [job for job in workflow["jobs"].values() if "self-hosted" in job["runs-on"]]
    assert all(job["if"].partition(" && ")[0] == "github.event.repository.fork == false" for job in own_machines)
    # One run at a time on a device, whichever workflow it comes from.
    assert all(job["concurrency"]["group"].startswith("device-") for job in own_machines)
    assert {job["concurrency"]["cancel-in-progress"] for job in own_machines} == {"false"}


@each_workflow
def test_permissions_are_least(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    raised = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    proposes = {"propose": {"contents": "write", "pull-requests": "write"}}
    assert raised == (proposes if path.stem == "baselines" else {})


@each_workflow
def test_a_checkout_leaves_no_token_behind(path: Path) -> None:
    checkouts = list(steps(load(path), "actions/checkout@"))
    assert checkouts
    assert {step["with"]["persist-credentials"] for step in checkouts} == {"false"}


@each_workflow
def test_artifacts_are_always_kept(path: Path) -> None:
    uploads = list(steps(load(path), "actions/upload-artifact@"))
    assert uploads
    assert {step.get("if") for step in uploads} == {"always()"}


@each_workflow
def test_no_expression_is_pasted_into_a_script(path: Path) -> None:
    # A value pasted into a script is run as a part of it; through `env:` it stays a value.
    assert [step["run"] for step in steps(load(path)) if "${{" in step.get("run", "")] == []


@each_workflow
def test_every_job_ends(path: Path) -> None:
    assert all(int(job["timeout-minutes"]) > 0 for job in load(path)["jobs"].values())


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_constraints_pin_each_dependency_once_within_its_range(python: str) -> None:
    project = PYPROJECT["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    pinned: dict[str, str] = {}
    for pin in pins():
        if pin.marker is not None and not pin.marker.evaluate({"python_version": python}):
            continue
        (specifier,) = pin.specifier
        assert specifier.operator == "==", f"{pin} is a range"
        assert canonicalize_name(pin.name) not in pinned, f"{pin.name} is pinned twice"
        pinned[canonicalize_name(pin.name)] = specifier.version
    for need in map(Requirement, lines):
        assert pinned[canonicalize_name(need.name)] in need.specifier


def test_the_ci_script_and_the_workflows_use_one_tox() -> None:
    paths = [ROOT / ".ci" / "run", *WORKFLOWS]
    pinned = re.compile(r'(?:tox==|TOX_VERSION: ")(\d[\d.]*)')
    assert len({version for path in paths for version in pinned.findall(path.read_text())}) == 1


def test_pytest_finds_the_plugin_once_installed() -> None:
    (plugin,) = entry_points(group="pytest11", name="trainbench")
    assert plugin.value == "pytest_trainbench.plugin"


def test_the_package_says_that_it_is_typed_and_under_which_licence() -> None:
    assert (ROOT / "plugin" / "pytest_trainbench" / "py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["pytest_trainbench"]
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
