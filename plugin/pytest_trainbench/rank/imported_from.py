"""Which of the project's files a step imports, and whether they belong to the requested commit.

A rank starts with modules that the fork server imported for all ranks (``trainbench_preload``). The project's modules
among them are hidden first. An import brings a module back. So only files that the step imports are noted.
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
"""The plugin's package. Its files are not noted, because the environment has its version. Both sides of a comparison
run the same plugin."""

HARNESS = Path(__file__).parent.parent
"""The plugin's folder."""

STARTED = ("__main__", "__mp_main__")
"""Names of the module that started the process. The step does not import it."""

INSTALLED = ("site-packages", "dist-packages")

ADVICE = "add its folder to pythonpath in the ini file, so that both sides import it the same way"


def hide(root: Path) -> None:
    """Remove the project's modules from ``sys.modules``. The next import brings the same module back, without running
    its code again."""
    modules = {
        name: module
        for name, module in list(sys.modules.items())
        if _own(name, module, root) and getattr(module, "__spec__", None) is not None
    }
    for name, module in modules.items():
        del sys.modules[name]
        # Otherwise `from package import module` would find the module without importing it.
        parent, _, child = name.rpartition(".")
        package = modules.get(parent) or sys.modules.get(parent)
        if package is not None and vars(package).get(child) is module:
            delattr(package, child)
    if modules:
        sys.meta_path.insert(0, Hidden(modules))


def noted(root: Path) -> dict[str, str]:
    """Fingerprints of the project's files that this process imported, by path relative to ``root``. Hidden modules do
    not count. The fingerprint is empty if the file is gone."""
    paths = {path for name, module in list(sys.modules.items()) if (path := _own(name, module, root))}
    return {path: _fingerprint(root / path) for path in sorted(paths)}


def _fingerprint(path: Path) -> str:
    try:
        return fingerprint(path.read_bytes())
    except OSError:
        return ""


def _own(name: str, module: ModuleType, root: Path) -> str:
    """The path of a module relative to ``root``; empty if the module does not belong to the project."""
    file = getattr(module, "__file__", None)
    if name in STARTED or name.partition(".")[0] == PACKAGE or not isinstance(file, str):
        return ""
    if not Path(file).is_absolute():  # torch.ops, for example, has a relative path that is not a file
        return ""
    path, top = Path(os.path.realpath(file)), Path(os.path.realpath(root))
    if not path.is_relative_to(top):
        return ""
    inside = path.relative_to(top)
    if any(part in INSTALLED or part.startswith(".") for part in inside.parts):
        return ""
    # A virtual environment inside the project is not part of it. But a project may be inside a prefix, as in /usr/src.
    prefixes = {Path(os.path.realpath(prefix)) for prefix in (sys.prefix, sys.base_prefix)}
    if any(top in prefix.parents and prefix in path.parents for prefix in prefixes):
        return ""
    return inside.as_posix()


class Hidden(MetaPathFinder, Loader):
    """Finder and loader of hidden modules. It brings them back unchanged."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        # Keep each module's spec, because the import system replaces it.
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
        """Bring back the modules that this module imported when its code ran. The code itself does not run again."""
        assert module.__spec__ is not None
        _, module.__spec__ = self._hidden.pop(module.__spec__.name)
        for name in _imports(module):
            if name in self._hidden:
                importlib.import_module(name)


def _imports(module: ModuleType) -> Iterator[str]:
    """Names that the module's code may have imported when it ran. Imports inside functions do not count."""
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
    """Check that the project's modules come from ``checkout``. Raises ``ImportError`` if they do not.

    ``files`` has the file of each imported module by name. A module must not come from the working ``tree``, nor from
    an installed copy of the project. Otherwise a commit would be compared with itself.
    """
    checkout, tree = checkout.resolve(), tree.resolve()
    elsewhere = [checkout, Path(sys.prefix).resolve(), HARNESS.resolve()]
    found = {name: Path(file).resolve() for name, file in files.items() if file}
    for name, path in found.items():
        strays = path.is_relative_to(tree) and not any(map(path.is_relative_to, elsewhere))
        if strays or (not path.is_relative_to(checkout) and _has(checkout, name)):
            raise ImportError(f"{name} was imported from {path}, not from the commit to compare with: {ADVICE}")
    if not any(path.is_relative_to(checkout) for path in found.values()):
        raise ImportError(f"no imported module comes from the commit to compare with: {ADVICE}")


def _has(checkout: Path, name: str) -> bool:
    """Whether the project has a top-level package or module of this name, in its root or in ``src``. Both the root of
    ``checkout`` and the working directory count as roots."""
    if "." in name or name in sys.stdlib_module_names or name == PACKAGE:
        return False
    roots = [root / folder for root in {checkout, Path.cwd()} for folder in ("", "src")]
    return any((root / file).is_file() for root in roots for file in (f"{name}/__init__.py", f"{name}.py"))
