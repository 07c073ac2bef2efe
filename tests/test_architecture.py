"""Imports go one way, only edge modules import pytest, and heavy libraries are imported inside functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_trainbench
from pytest_trainbench.schema.metrics import METRICS

PACKAGE = Path(pytest_trainbench.__file__).parent

LADDER: dict[str, tuple[str, ...]] = {
    "schema": ("files", "mesh", "case", "step", "plan", "job", "record", "metrics", "conditions"),
    "project": ("git", "rootdir", "sources", "name"),
    "hardware": ("catalog", "resolve", "detect", "environment"),
    "rank": (
        "private",
        "flops",
        "collectives",
        "compilations",
        "slowdown",
        "breakdown",
        "energy",
        "host_counters",
        "imported_from",
        "measure",
        "worker",
    ),
    "launch": (
        "private",
        "fork_server",
        "preload",
        "ranks",
        "device_monitor",
        "watchdog",
        "result",
        "launcher",
        "checkout",
        "side_process",
        "node_key",
        "keyed_store",
        "cluster",
    ),
    "store": ("baseline", "history", "dataframe", "other_code"),
    "judge": (
        "validity",
        "aggregate",
        "noise",
        "visits",
        "attribution",
        "outcome",
        "policy",
        "compare",
        "middle",
        "explain",
        "verdict",
        "drift",
        "red_since",
    ),
    "report": (
        "plain",
        "calibration",
        "rows",
        "cost",
        "one_change",
        "header",
        "tables",
        "terminal",
        "drift",
        "markdown",
        "chart",
        "svg",
        "pictures",
        "page",
        "exchange",
    ),
    "": (
        "stale",
        "export",
        "settings",
        "schedulers",
        "nodes",
        "runner",
        "calibrate",
        "hookspecs",
        "__init__",
        "archive",
        "progress",
        "pytest_benchmark_bridge",
        "session",
        "listing",
        "plugin",
    ),
}
"""Every folder with its modules, from the lowest to the highest. A module imports only modules before it in its own
folder, and modules of the folders in :data:`IMPORTS`. The last folder is the package itself."""

IMPORTS: dict[str, set[str]] = {
    "schema": set(),
    "project": set(),
    "hardware": {"schema"},
    "rank": {"schema", "project"},
    "launch": {"schema", "project", "hardware", "rank"},
    "store": {"schema", "project", "hardware"},
    "judge": {"schema", "hardware", "store"},
    "report": {"schema", "project", "hardware", "store", "judge"},
    "": {"schema", "project", "hardware", "launch", "store", "judge", "report"},
}
"""The folders that the modules of a folder import."""

KNOWS_PYTEST = {"plugin", "session", "listing", "pytest_benchmark_bridge"}

HEAVY = {"torch", "pandas", "scipy"}
"""Imported only inside functions, so that collecting tests is fast and needs no device."""

FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imported(node: ast.AST) -> Iterator[str]:
    """Full names that one statement imports. ``from a import b`` may mean the module ``a.b``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, f"line {node.lineno}: imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def everywhere(source: str) -> set[str]:
    return {name for node in ast.walk(ast.parse(source)) for name in imported(node)}


def on_import(source: str) -> set[str]:
    """Names that are imported when the module is imported: none in functions or under ``TYPE_CHECKING``."""
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
    """The modules of this package among ``names``."""
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


def place(module: str) -> tuple[str, str]:
    """A module's folder (empty for the package itself) and its name there. A folder itself is named ``__init__``."""
    folder, _, name = module.rpartition(".")
    return (module, "__init__") if not folder and name in LADDER else (folder, name)


def test_the_ladder_lists_every_module_exactly_once() -> None:
    folders = [folder for folder in LADDER if folder]
    assert set(FILES) == {
        *folders,
        *(f"{at}.{name}".removeprefix(".") for at, inside in LADDER.items() for name in inside),
    }
    assert all(len(set(inside)) == len(inside) for inside in LADDER.values())


def test_a_folder_imports_only_lower_folders() -> None:
    assert list(IMPORTS) == list(LADDER)
    for number, (folder, lower) in enumerate(IMPORTS.items()):
        assert lower <= set(list(LADDER)[:number]), folder


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_only_modules_below_it(module: str) -> None:
    at, name = place(module)
    below = LADDER[at][: LADDER[at].index(name)] if name in LADDER[at] else ()
    for other in ours(everywhere(FILES[module].read_text())):
        there, its_name = place(other)
        assert its_name in below if there == at else there in IMPORTS[at], f"{module} imports {other}"


def test_each_folder_imports_every_folder_listed_for_it() -> None:
    found: dict[str, set[str]] = {folder: set() for folder in LADDER}
    for module, path in FILES.items():
        at, _ = place(module)
        found[at] |= {place(other)[0] for other in ours(everywhere(path.read_text()))} - {at}
    assert found == IMPORTS


@pytest.mark.parametrize("folder", [folder for folder in LADDER if folder])
def test_a_folders_docstring_names_its_imports(folder: str) -> None:
    """The file holds nothing else: imports from a folder name the module."""
    (statement,) = ast.parse(FILES[folder].read_text()).body
    assert isinstance(statement, ast.Expr)
    said = " ".join(ast.literal_eval(statement.value).split())
    _, _, imports = said.partition(" Imports ")
    assert imports, said
    if not IMPORTS[folder]:
        assert imports == "nothing but the standard library."
    assert {name for name in LADDER if name and f"{name}/" in imports.partition(";")[0]} == IMPORTS[folder]


@pytest.mark.parametrize("module", FILES)
def test_only_edge_modules_import_pytest(module: str) -> None:
    known = roots(everywhere(FILES[module].read_text()))
    assert ("pytest" in known) == (module in KNOWS_PYTEST)
    assert "_pytest" not in known


@pytest.mark.parametrize("module", FILES)
def test_importing_a_module_imports_no_heavy_library(module: str) -> None:
    assert roots(on_import(FILES[module].read_text())) & HEAVY == set()


def test_modules_for_another_environment_import_only_the_standard_library() -> None:
    """``--against`` requires only torch in the other environment, and torch is imported inside functions."""
    reached: set[str] = set()
    pending = {"__init__", "launch.side_process", "launch.preload"}
    while pending:
        module = pending.pop()
        reached.add(module)
        pending |= ours(on_import(FILES[module].read_text())) - reached
    found = {root for module in reached for root in roots(on_import(FILES[module].read_text()))}
    assert found - {"pytest_trainbench", *sys.stdlib_module_names} == set()


@pytest.mark.parametrize("module", [module for module in FILES if module.startswith("judge.")])
def test_judge_modules_name_no_metric(module: str) -> None:
    """Anything particular to a metric is data in its row."""
    constants = {
        node.value for node in ast.walk(ast.parse(FILES[module].read_text())) if isinstance(node, ast.Constant)
    }
    assert constants & METRICS.keys() == set()


@pytest.mark.parametrize("module", FILES)
def test_private_parts_of_libraries_are_used_only_in_shims(module: str) -> None:
    """Applies to torch, pytest and the standard library. tests/test_private.py gives each private part's purpose."""
    if module.rpartition(".")[2] == "private":
        return
    tree = ast.parse(FILES[module].read_text())
    theirs = {root for root in roots(everywhere(FILES[module].read_text())) if root != "pytest_trainbench"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value).partition(".")[0]
            ends_at_once = (owner, node.attr) == ("os", "_exit")  # documented
            assert ends_at_once or owner not in {*theirs, "reporter", "server"}, ast.unparse(node)
        for name in imported(node):
            hidden = [part for part in name.split(".") if part.startswith("_") and not part.startswith("__")]
            assert name.startswith("pytest_trainbench") or not hidden, name


def test_no_module_is_named_utils_or_helpers() -> None:
    assert [name for name in FILES if name.rpartition(".")[2] in ("utils", "util", "helpers", "common")] == []


def test_imports_are_found_in_every_scope() -> None:
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
