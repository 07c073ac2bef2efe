"""Which files of the project the step of a rank imports, and whether they are of the commit that it is to run.

Ranks start with modules in memory that the fork server imported for all of them (``trainbench_preload``). Those of the
project are hidden first, and come back where something imports them: what a step does not import is not noted for it.
"""

from __future__ import annotations

import ast
import copy
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from pytest_trainbench.project.sources import fingerprint

PACKAGE = __name__.partition(".")[0]
"""The harness: its version is recorded with the environment, and it is the same on both sides of a comparison."""

HARNESS = Path(__file__).parent.parent
"""Its folder."""

STARTED = ("__main__", "__mp_main__")
"""What a process was started with. The step does not import it."""

INSTALLED = ("site-packages", "dist-packages")

MEND = "name the folder that it is in as pythonpath of the ini file, so that both sides find it alike"


def hide(root: Path) -> None:
    """Take the project's modules out of ``sys.modules``. The next import of one brings the same module back; its code
    does not run a second time."""
    modules = {
        name: module
        for name, module in list(sys.modules.items())
        if _own(name, module, root) and getattr(module, "__spec__", None) is not None
    }
    for name, module in modules.items():
        del sys.modules[name]
        # Else `from package import module` would find it without an import.
        parent, _, child = name.rpartition(".")
        package = modules.get(parent) or sys.modules.get(parent)
        if package is not None and vars(package).get(child) is module:
            delattr(package, child)
    if modules:
        sys.meta_path.insert(0, Hidden(modules))


def noted(root: Path) -> dict[str, str]:
    """The project's files that this process imported and that are not hidden, as paths relative to ``root``, each with
    the fingerprint of its bytes (empty where the file is gone)."""
    paths = {path for name, module in list(sys.modules.items()) if (path := _own(name, module, root))}
    return {path: _fingerprint(root / path) for path in sorted(paths)}


def _fingerprint(path: Path) -> str:
    try:
        return fingerprint(path.read_bytes())
    except OSError:
        return ""


def _own(name: str, module: ModuleType, root: Path) -> str:
    """The path of a module of the project, relative to ``root``; empty for any other."""
    file = getattr(module, "__file__", None)
    if name in STARTED or name.partition(".")[0] == PACKAGE or not isinstance(file, str):
        return ""
    if not Path(file).is_absolute():  # as torch.ops says of itself: no file that anything was imported from
        return ""
    path, top = Path(os.path.realpath(file)), Path(os.path.realpath(root))
    if not path.is_relative_to(top):
        return ""
    inside = path.relative_to(top)
    if any(part in INSTALLED or part.startswith(".") for part in inside.parts):
        return ""
    # An environment in a folder of the project. Not the other way round: a project may be in /usr/src.
    prefixes = {Path(os.path.realpath(prefix)) for prefix in (sys.prefix, sys.base_prefix)}
    if any(top in prefix.parents and prefix in path.parents for prefix in prefixes):
        return ""
    return inside.as_posix()


class Hidden(MetaPathFinder, Loader):
    """Finds modules that were imported before, and brings them back as they are."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        # A module keeps its own spec: the import system is about to replace it.
        self._hidden = {name: (module, module.__spec__) for name, module in modules.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._hidden:
            return None
        spec = copy.copy(self._hidden[fullname][1])
        assert spec is not None
        spec.name, spec.loader = fullname, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._hidden[spec.name][0]

    def exec_module(self, module: ModuleType) -> None:
        """Instead of the module's code: bring back what that code imported when it ran."""
        assert module.__spec__ is not None
        _, module.__spec__ = self._hidden.pop(module.__spec__.name)
        for name in _imports(module):
            if name in self._hidden:
                importlib.import_module(name)


def _imports(module: ModuleType) -> Iterator[str]:
    """Names of what a module may have imported when it was imported itself: not what its functions import."""
    file = Path(str(module.__file__))
    pending: list[ast.AST] = [ast.parse(file.read_bytes())] if file.suffix == ".py" and file.is_file() else []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)


def check_modules(files: Mapping[str, str | None], tree: Path, checkout: Path) -> None:
    """Raises ``ImportError`` where a process that was to run a ``checkout`` ran something else of that project: its
    modules (``files`` by name) must not come from the working ``tree``, nor from where it is installed.

    Otherwise a commit would be compared with itself, and never differ.
    """
    checkout, tree = checkout.resolve(), tree.resolve()
    elsewhere = [checkout, Path(sys.prefix).resolve(), HARNESS.resolve()]
    found = {name: Path(file).resolve() for name, file in files.items() if file}
    for name, path in found.items():
        strays = path.is_relative_to(tree) and not any(map(path.is_relative_to, elsewhere))
        if strays or (not path.is_relative_to(checkout) and _has(checkout, name)):
            raise ImportError(f"{name} was imported from {path}, not from the commit to compare with: {MEND}")
    if not any(path.is_relative_to(checkout) for path in found.values()):
        raise ImportError(f"nothing that was imported is of the commit to compare with: {MEND}")


def _has(checkout: Path, name: str) -> bool:
    """Whether a project has a package or module of this name, in its root or in ``src``: of the repository, or of the
    part of it that the session stands in."""
    if "." in name or name in sys.stdlib_module_names or name == PACKAGE:
        return False
    roots = [root / folder for root in {checkout, Path.cwd()} for folder in ("", "src")]
    return any((root / file).is_file() for root in roots for file in (f"{name}/__init__.py", f"{name}.py"))
