"""The map of a package: its rooms, which room imports which, and on how many levels.

    python -m benchmarks.import_map [PACKAGE]

The package is the plugin's unless told: to show a map before and after, name one in a worktree of another revision.

A room is a folder or, at the top of the package, a module. All imports count, wherever they stand. The level of a room
is the length of the longest way down from it.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

HERE = Path(__file__).parent.parent / "plugin" / "pytest_trainbench"

Graph = Mapping[str, set[str]]
"""What each imports, by name."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """``name``: with dots, without the package's own; empty for the package itself. ``room``: the folder that it is in,
    or its own name at the top. ``imports``: names of other modules of the package."""

    name: str
    room: str
    imports: frozenset[str]


def modules(package: Path) -> list[Module]:
    """Every module of a package, in the order of their names. A folder's own ``__init__`` is a module of that
    folder."""
    paths = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    folders = {name.partition(".")[0] for name in paths if "." in name}

    def module(name: str, path: Path) -> Module:
        found = {_module(imported, paths) for imported in _imported(path, package.name)}
        room = name.partition(".")[0] if name.partition(".")[0] in folders else name
        return Module(name=name, room=room, imports=frozenset(found - {name}))

    return [module(name, path) for name, path in paths.items()]


def of_modules(found: Sequence[Module]) -> Graph:
    return {module.name: set(module.imports) for module in found}


def of_rooms(found: Sequence[Module]) -> Graph:
    room_of = {module.name: module.room for module in found}
    graph: dict[str, set[str]] = {module.room: set() for module in found}
    for module in found:
        graph[module.room] |= {room_of[name] for name in module.imports} - {module.room}
    return graph


def levels(graph: Graph) -> dict[str, int]:
    """The level of each, from 1. Raises ``ValueError`` for imports that go round in a circle."""
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise ValueError(f"a circle of imports: {' → '.join(error.args[1])}") from None
    found: dict[str, int] = {}
    for name in order:
        found[name] = 1 + max((found[lower] for lower in graph[name]), default=0)
    return found


def page(package: Path) -> str:
    """The map, in lines."""
    found = modules(package)
    rooms = of_rooms(found)
    size = {room: sum(module.room == room for module in found) for room in rooms}
    at = levels(rooms)
    lines = [_counts("modules", of_modules(found)), _counts("rooms", rooms), ""]
    width = max(len(_spell(room, package)) for room in rooms)
    for room in sorted(rooms, key=lambda room: (-at[room], room)):
        below = ", ".join(
            _spell(lower, package) for lower in sorted(rooms[room], key=lambda lower: (-at[lower], lower))
        )
        lines.append(f"{at[room]:>2}  {_spell(room, package):<{width}}  {size[room]:>2}  {below}".rstrip())
    return "\n".join(lines)


def _counts(what: str, graph: Graph) -> str:
    arrows = sum(map(len, graph.values()))
    return f"{len(graph)} {what}, {arrows} arrows between them, on {max(levels(graph).values())} levels"


def _spell(room: str, package: Path) -> str:
    return room or package.name


def _name(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def _imported(path: Path, package: str) -> Iterator[str]:
    """Full names, without the package's, of what a file imports from it; ``from a import b`` may mean ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.partition(".")[0] == package:
                yield name.partition(".")[2]


def _module(imported: str, known: Mapping[str, Path]) -> str:
    while imported not in known:
        imported = imported.rpartition(".")[0]
    return imported


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.import_map", description="Print the map of a package.")
    parser.add_argument("package", nargs="?", type=Path, default=HERE, help="its folder (default: the plugin's)")
    print(page(parser.parse_args().package.resolve()))


if __name__ == "__main__":
    main()
