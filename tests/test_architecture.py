"""Imports go one way, pytest stays at the edge, and heavy libraries are imported where they are used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_trainbench

PACKAGE = Path(pytest_trainbench.__file__).parent

LADDER = (
    "project",
    "project.git",
    "project.rootdir",
    "project.sources",
    "project.name",
    "schema",
    # The words everyone shares.
    "schema.mesh",
    "schema.case",
    "schema.plan",
    "schema.job",
    "schema.step",
    "schema.record",
    "hardware",
    "hardware.catalog",
    "hardware.resolve",
    "schema.conditions",
    # From what a rank saw to a verdict.
    "schema.metrics",
    "rank",
    "rank.flops",
    "rank.collectives",
    "rank.compilations",
    "rank.slowdown",
    "rank.breakdown",
    "rank.energy",
    "rank.host_counters",
    "rank.measure",
    "hardware.detect",
    "hardware.environment",
    "store",
    "store.baseline",
    "store.history",
    "store.dataframe",
    "store.other_code",
    "stale",
    "judge",
    "judge.aggregate",
    "judge.noise",
    "judge.attribution",
    "judge.verdict",
    "judge.drift",
    "judge.red_since",
    "settings",
    # Text.
    "report",
    "report.calibration",
    "report.rows",
    "report.cost",
    "report.one_change",
    "report.terminal",
    "report.drift",
    "report.markdown",
    # Processes.
    "rank.imported_from",
    "rank.worker",
    "launch",
    "launch.device_monitor",
    "launch.checkout",
    "launch.launcher",
    "launch.preload",
    "launch.side_process",
    "launch.cluster",
    "nodes",
    "runner",
    "calibrate",
    # What users import, and pytest.
    "hookspecs",
    "__init__",
    "pytest_benchmark_bridge",
    "session",
    "plugin",
)
"""Every module, from the lowest to the highest: each may import only those above it in this list."""

KNOWS_PYTEST = {"plugin", "session", "pytest_benchmark_bridge"}

HEAVY = {"torch", "pandas", "scipy"}
"""Imported inside functions only, so that collecting tests costs nothing and needs no device."""

FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imported(node: ast.AST) -> Iterator[str]:
    """Full names of what one statement imports; ``from a import b`` may mean the module ``a.b``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, f"line {node.lineno}: imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def everywhere(source: str) -> set[str]:
    return {name for node in ast.walk(ast.parse(source)) for name in imported(node)}


def on_import(source: str) -> set[str]:
    """What importing a module imports: not what stands in a function or under ``TYPE_CHECKING``."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        found.update(imported(node))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


def ours(names: set[str]) -> set[str]:
    """Modules of this package among ``names``."""
    modules = set()
    for name in names:
        if name.split(".")[0] == "pytest_trainbench":
            inner = name.removeprefix("pytest_trainbench").removeprefix(".")
            while inner and inner not in FILES:
                inner = inner.rpartition(".")[0]
            modules.add(inner or "__init__")
    return modules


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_every_module_has_its_place_and_every_place_its_module() -> None:
    assert len(set(LADDER)) == len(LADDER)
    assert set(FILES) == set(LADDER)


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_only_what_stands_below_it(module: str) -> None:
    allowed = set(LADDER[: LADDER.index(module)])
    assert ours(everywhere(FILES[module].read_text())) - allowed == set()


@pytest.mark.parametrize("module", FILES)
def test_only_the_edge_knows_pytest(module: str) -> None:
    known = roots(everywhere(FILES[module].read_text()))
    assert ("pytest" in known) == (module in KNOWS_PYTEST)
    assert "_pytest" not in known


@pytest.mark.parametrize("module", FILES)
def test_no_module_imports_a_heavy_library_when_it_is_imported(module: str) -> None:
    assert roots(on_import(FILES[module].read_text())) & HEAVY == set()


def test_what_runs_in_another_environment_needs_no_library_there_to_be_imported() -> None:
    """``--against`` asks of it for torch alone, which is imported where it is used."""
    reached: set[str] = set()
    pending = {"__init__", "launch.side_process", "launch.preload"}
    while pending:
        module = pending.pop()
        reached.add(module)
        pending |= ours(on_import(FILES[module].read_text())) - reached
    found = {root for module in reached for root in roots(on_import(FILES[module].read_text()))}
    assert found - {"pytest_trainbench", *sys.stdlib_module_names} == set()


def test_no_file_is_a_drawer_for_everything() -> None:
    assert [name for name in FILES if name.rpartition(".")[2] in ("utils", "util", "helpers", "common")] == []


def test_this_file_sees_imports_wherever_they_stand() -> None:
    source = """
import torch.nn as nn
from pytest_trainbench import load
from pytest_trainbench.store import baseline
from pytest_trainbench.report.rows import Row
if TYPE_CHECKING:
    import pandas
else:
    import json
class A:
    import scipy
    def f(self):
        from pytest_trainbench.schema.case import Case
try:
    import pytest
except ImportError:
    pass
"""
    assert ours(everywhere(source)) == {"store.baseline", "__init__", "report.rows", "schema.case"}
    assert roots(on_import(source)) == {"torch", "pytest_trainbench", "json", "scipy", "pytest"}
    assert "pandas" in roots(everywhere(source))
