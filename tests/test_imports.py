"""A rank notes the project's files that its own step imports, whichever modules were preloaded."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trainbench.rank.imported_from import hide, noted

FILES = {
    "zoo/__init__.py": "",
    "zoo/first.py": "import zoo.side\nfrom zoo.shared import VALUE\nRUNS.append('first')",
    "zoo/second.py": "from .shared import VALUE\ndef later():\n    import zoo.late\n",
    "zoo/shared.py": "VALUE = []",
    "zoo/side.py": "RUNS.append('side')",
    "zoo/late.py": "",
    "zoo/new.py": "from zoo import second",
    "env/lib/site-packages/installed.py": "",
    ".venv/hidden.py": "",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project. Its modules are unloaded after the test."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for folder in ("", "env/lib/site-packages", ".venv"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr("builtins.RUNS", [], raising=False)
    before = dict(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


def runs() -> Any:
    return importlib.import_module("builtins").RUNS  # type: ignore[attr-defined]


def test_a_preloaded_module_that_is_not_used_is_not_noted(root: Path) -> None:
    importlib.import_module("zoo.first")
    importlib.import_module("zoo.second")
    hide(root)
    assert noted(root) == {}
    importlib.import_module("zoo.second")
    assert list(noted(root)) == ["zoo/__init__.py", "zoo/second.py", "zoo/shared.py"]


def test_a_preloaded_module_that_is_used_does_not_run_again(root: Path) -> None:
    """A custom operator cannot be registered twice, and its library is destroyed with the module that holds it."""
    first = importlib.import_module("zoo.first")
    spec = first.__spec__
    hide(root)
    assert importlib.import_module("zoo.first") is first and first.__spec__ is spec
    assert runs() == ["side", "first"], "and what it imports comes with it, once"
    assert list(noted(root)) == ["zoo/__init__.py", "zoo/first.py", "zoo/shared.py", "zoo/side.py"]
    assert sys.modules["zoo"].first is first
    assert first.VALUE is sys.modules["zoo.shared"].VALUE


def test_a_module_imported_from_its_package_is_noted(root: Path) -> None:
    """The package already has the module as an attribute, so Python does not import it again."""
    importlib.import_module("zoo.second")
    hide(root)
    importlib.import_module("zoo.new")
    assert "zoo/second.py" in noted(root)


def test_an_import_inside_a_function_is_noted_when_it_runs(root: Path) -> None:
    importlib.import_module("zoo.late")
    second = importlib.import_module("zoo.second")
    hide(root)
    importlib.import_module("zoo.second")
    assert "zoo/late.py" not in noted(root)
    second.later()
    assert "zoo/late.py" in noted(root)


def test_installed_files_and_modules_without_a_file_are_not_noted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = types.ModuleType("odd")
    odd.__file__ = "zoo/first.py"  # a relative path of no real file, as in torch.ops
    monkeypatch.chdir(root)
    monkeypatch.setitem(sys.modules, "odd", odd)
    for name in ("installed", "hidden", "zoo.shared"):
        importlib.import_module(name)
    assert list(noted(root)) == ["zoo/__init__.py", "zoo/shared.py"]
    monkeypatch.setattr(sys, "prefix", str(root / "zoo"))
    assert noted(root) == {}, "an environment in a folder of the project"
    monkeypatch.setattr(sys, "prefix", str(root.parent))
    assert list(noted(root)) == ["zoo/__init__.py", "zoo/shared.py"], "a project in a folder of the environment's"


def test_a_deleted_file_has_no_fingerprint(root: Path) -> None:
    importlib.import_module("zoo.shared")
    (root / "zoo" / "shared.py").unlink()
    assert noted(root)["zoo/shared.py"] == ""
