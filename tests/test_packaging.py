"""What the project promises about itself: pins, workflows and metadata."""

from __future__ import annotations

import configparser
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_trainbench.hardware.environment import DISTRIBUTIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GPU_PYTHON = "3.12"
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Any]:
    # BaseLoader keeps the key `on` as text. YAML 1.1 makes it true.
    workflow = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    assert isinstance(workflow, dict)
    return workflow


def steps(workflow: dict[str, Any], action: str = "") -> Iterator[dict[str, Any]]:
    """The steps of every job, or those whose `uses` starts with `action`."""
    for job in workflow["jobs"].values():
        yield from (step for step in job["steps"] if step.get("uses", "").startswith(action))


def pins(name: str, python: str) -> dict[str, str]:
    """Versions by package, pinned for one version of Python in a file and in the files that it includes."""
    pinned: dict[str, str] = {}
    for line in (ROOT / name).read_text().splitlines():
        text = line.partition("#")[0].strip()
        found = {}
        if text.startswith("-c "):
            found = pins(text.removeprefix("-c "), python)
        elif text:
            pin = Requirement(text)
            (specifier,) = pin.specifier
            assert specifier.operator == "==", f"{pin} is a range"
            if pin.marker is None or pin.marker.evaluate({"python_version": python}):
                found = {canonicalize_name(pin.name): specifier.version}
        assert not set(found) & set(pinned), f"{line} in {name} is pinned twice"
        pinned |= found
    return pinned


def stored_versions() -> dict[str, str]:
    """The versions by package, and of Python, that most rows stored on GPUs were measured with.

    The majority decides, not the newest row. While rows are saved again in another environment, the nightly stays in
    the environment of the other rows.
    """
    records = [json.loads(path.read_text()) for path in (ROOT / "baselines").rglob("*.json")]
    records.sort(key=lambda record: str(record["created"]), reverse=True)  # in a tie the newer counts
    facts = [record["environment"]["suspects"] for record in records]
    names = {"torch", "python", *DISTRIBUTIONS} - {"pytest-trainbench"}
    counts = {name: Counter(one[name] for one in facts if "cuda" in one and name in one) for name in names}
    return {name: Version(count.most_common(1)[0][0]).public for name, count in counts.items() if count}


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
def test_workflows_have_only_the_permissions_they_need(path: Path) -> None:
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
def test_artifacts_are_uploaded_even_after_a_failure(path: Path) -> None:
    uploads = list(steps(load(path), "actions/upload-artifact@"))
    assert uploads
    assert {step.get("if") for step in uploads} == {"always()"}


@each_workflow
def test_no_script_contains_a_workflow_expression(path: Path) -> None:
    # A shell runs a pasted value as code. Through `env:` it stays a value.
    assert [step["run"] for step in steps(load(path)) if "${{" in step.get("run", "")] == []


@each_workflow
def test_every_job_has_a_timeout(path: Path) -> None:
    assert all(int(job["timeout-minutes"]) > 0 for job in load(path)["jobs"].values())


@pytest.mark.parametrize(
    ("name", "python"),
    [*(("constraints.txt", python) for python in ("3.10", "3.11", "3.12")), ("constraints-gpu.txt", GPU_PYTHON)],
)
def test_constraints_pin_each_dependency_once_within_its_range(name: str, python: str) -> None:
    project = PYPROJECT["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    pinned = pins(name, python)
    for need in map(Requirement, lines):
        assert pinned[canonicalize_name(need.name)] in need.specifier


def test_the_nightly_runs_in_the_environment_of_the_stored_rows() -> None:
    """Otherwise the nightly would be red although nobody changed the code."""
    pinned, stored = pins("constraints-gpu.txt", GPU_PYTHON), stored_versions()
    stored_python = stored.pop("python")
    differ = [
        f"{name}: pinned {pinned.get(name)}, stored {version}"
        for name, version in sorted(stored.items())
        if pinned.get(name) != version
    ]
    mend = "pin in constraints-gpu.txt what is stored, or save all baselines anew with `tox run -e bench-gpu`"
    assert not differ, f"{'; '.join(differ)}: {mend}"
    assert stored_python.startswith(f"{GPU_PYTHON}."), f"the rows are of Python {stored_python}: raise GPU_PYTHON here"


@pytest.mark.parametrize("workflow", ["nightly", "baselines"])
def test_gpu_workflows_use_the_pinned_packages_and_python(workflow: str) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    gpu = tox["testenv:bench-gpu"]
    assert (gpu["base_python"], "-c constraints-gpu.txt" in gpu["deps"]) == (f"python{GPU_PYTHON}", True)
    path = ROOT / ".github" / "workflows" / f"{workflow}.yml"
    assert [step["with"]["python-version"] for step in steps(load(path), "actions/setup-python@")] == [GPU_PYTHON]
    (run,) = (step["run"] for step in steps(load(path)) if 'bin/tox" run' in step.get("run", ""))
    assert "run -e bench-gpu --" in run


def test_the_baselines_workflow_also_updates_the_generated_pages() -> None:
    """Otherwise each update of the baselines would leave the pages stale."""
    workflow = load(ROOT / ".github" / "workflows" / "baselines.yml")
    names = [step.get("name", step.get("uses")) for step in steps(workflow)]
    assert names.index("Save the baseline") < names.index("Write the pages that show stored rows")
    (written,) = (step["run"] for step in steps(workflow) if step.get("name", "").startswith("Write the pages"))
    assert written.endswith("python -m bench_tests.pages")
    (kept,) = (one["with"]["path"] for one in steps(workflow, "actions/upload") if one["with"]["name"] == "baselines")
    assert kept.split() == ["README.md", "baselines/", "docs/"]
    (proposed,) = (step["run"] for step in steps(workflow) if step.get("name") == "Open a pull request")
    assert "git add --all -- README.md baselines/ docs/" in proposed


@pytest.mark.parametrize("path", [".ci/run", ".github/workflows/ci.yml"])
def test_the_site_is_built_with_every_change(path: str) -> None:
    assert "run -e lint,types,docs\n" in (ROOT / path).read_text()


def test_the_ci_script_and_the_workflows_use_one_version_of_tox() -> None:
    paths = [ROOT / ".ci" / "run", *WORKFLOWS]
    pinned = re.compile(r'(?:tox==|TOX_VERSION: ")(\d[\d.]*)')
    assert len({version for path in paths for version in pinned.findall(path.read_text())}) == 1


def test_pytest_finds_the_plugin_once_installed() -> None:
    (plugin,) = entry_points(group="pytest11", name="trainbench")
    assert plugin.value == "pytest_trainbench.plugin"


def test_the_package_declares_its_types_and_its_licence() -> None:
    assert (ROOT / "plugin" / "pytest_trainbench" / "py.typed").is_file()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["pytest_trainbench"]
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_package_contains_its_files_that_are_no_modules() -> None:
    """The web page has a template, a style and a script."""
    package = ROOT / "plugin" / "pytest_trainbench"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["pytest_trainbench"]
    found = [path.relative_to(package) for path in package.rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert len(found) >= 4
    assert [str(path) for path in found if not any(fnmatch(str(path), pattern) for pattern in patterns)] == []
