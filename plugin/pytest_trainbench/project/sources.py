"""Digests of the project's files, limited to the code that the measured step may use.

The digest of a Python file ignores docstrings, comments and formatting. So rewriting prose changes no digest. A module
may hold a table of rows, such as ``MODELS = {"bert": Model(...), ...}``. Only the rows that a case uses enter its
digest. So a new row does not change the digests of cases that do not use it. In doubt, a row enters the digest.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIGITS = 12
"""How many hexadecimal digits of SHA-256 a digest has."""

UNSTEADY = "changed while it was measured"
"""Stands in place of a file's digest if ranks or launches did not all have the same file. It counts as different from
every digest, itself included."""

MEANINGLESS = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of a syntax tree that follow from other fields, or have no effect when the program runs."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a file: a digest of its code (``code``) and its string constants (``words``)."""

    code: str
    words: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One parsed file.

    rest:
        All code outside the rows of tables.
    tables:
        Tables by name, each with its rows by key.
    together:
        Sets of tables that the file merges (``{**A, **B}``). Each table is in exactly one set.
    registries:
        Names of the tables in which every row is a call, such as ``Model(...)``.
    """

    rest: Piece
    tables: Mapping[str, Mapping[str, Piece]] = field(default_factory=dict)
    together: Sequence[frozenset[str]] = ()
    registries: frozenset[str] = frozenset()


class Tree:
    """The files of a project. Each file is read and parsed once.

    ``read`` takes a path relative to the project's root. It returns the file's bytes, or ``None`` if there is no such
    file.
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._sources: dict[str, Source | None] = {}

    @classmethod
    def of(cls, root: Path) -> Tree:
        """The files under ``root``, in their current state."""
        return cls(lambda path: _read(root / path))

    def digests(self, files: Iterable[str], params: Mapping[str, Any]) -> dict[str, str]:
        """Digests by path, for a case with these parameters. Files that do not exist are left out."""
        found = {path: source for path in sorted(files) if (source := self._source(path)) is not None}
        return digests(found, words(params))

    def _source(self, path: str) -> Source | None:
        if path not in self._sources:
            data = self._read(path)
            self._sources[path] = None if data is None else parse(path, data)
        return self._sources[path]


def fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def union(noted: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge what several ranks or launches noted of files, by path. A file on which they disagree is
    :data:`UNSTEADY`."""
    merged: dict[str, str] = {}
    for one in noted:
        for path, digest in one.items():
            merged[path] = digest if merged.get(path, digest) == digest else UNSTEADY
    return dict(sorted(merged.items()))


def of_record(root: Path, noted: Mapping[str, str], params: Mapping[str, Any]) -> dict[str, str]:
    """The digests that a record stores, by path, for a case with these parameters.

    ``noted`` has the fingerprints of the files that the ranks imported. A file under ``root`` that has changed since
    then is :data:`UNSTEADY`.
    """
    data = {path: _read(root / path) for path in noted}
    now = Tree(data.get).digests(noted, params)
    as_noted = {path for path, own in data.items() if own is not None and fingerprint(own) == noted[path]}
    return {path: now[path] if path in as_noted else UNSTEADY for path in noted}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Paths of the files whose digests differ or are :data:`UNSTEADY`, and of those that only one side has."""
    return sorted(path for path in {*before, *now} if before.get(path) != now.get(path) or now.get(path) == UNSTEADY)


def overall(code: Mapping[str, str]) -> str:
    """One digest of all files; empty if there are no files."""
    lines = (f"{path} {digest}" for path, digest in sorted(code.items()))
    return fingerprint("\n".join(lines).encode()) if code else ""


def words(value: Any) -> frozenset[str]:
    """All strings in a case's parameters. Each may be the key of a table row that the case uses."""
    if isinstance(value, str):
        return frozenset({value})
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    return frozenset().union(*map(words, inner))


def digests(sources: Mapping[str, Source], asked: frozenset[str]) -> dict[str, str]:
    """The digest of each file, by path, for a case that names the table rows ``asked``.

    The rules for the rows of a table, or of several tables that the file merges:

    * If ``asked`` names a row, or if all of the tables are registries, single rows count. A row counts if its key is in
      ``asked``, or is a string constant in other code that counts.
    * If ``asked`` names no row of a registry, rows also count if their key contains one of the strings in ``asked``.
      The code may build the key from it.
    * In all other tables, all rows count. The code may pass the whole table on, for example as options.
    """
    rows: dict[tuple[str, str, str], Piece] = {}
    kept: set[tuple[str, str, str]] = set()
    for path, source in sources.items():
        for group in source.together:
            found = {(path, table, key): piece for table in group for key, piece in source.tables[table].items()}
            rows |= found
            if any(key in asked for _, _, key in found):
                continue
            whole = not group <= source.registries
            kept |= {row for row in found if whole or any(word in row[2] for word in asked)}
    named = asked.union(*(source.rest.words for source in sources.values()), *(rows[row].words for row in kept))
    while more := {row for row in rows.keys() - kept if row[2] in named}:
        kept |= more
        named = named.union(*(rows[row].words for row in more))
    lines = {path: [source.rest.code] for path, source in sources.items()}
    for path, table, key in sorted(kept):
        lines[path].append(f"{table}[{key!a}] {rows[path, table, key].code}")
    return {path: fingerprint("\n".join(each).encode()) for path, each in lines.items()}


def parse(path: str, data: bytes) -> Source:
    """Parse one file. If this interpreter cannot parse it as Python, its digest is that of its bytes."""
    whole = Source(rest=Piece(code=fingerprint(data)))
    if not path.endswith(".py"):
        return whole
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the project's own run shows these warnings
            return _source(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError):
        return whole


def _source(tree: ast.Module) -> Source:
    texts = {
        target.id: value.value
        for target, value in map(_assigned, tree.body)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    }

    def key_of(node: ast.expr | None) -> str | None:
        """The key as a string, from a string constant or the name of one; ``None`` if it is another expression."""
        if isinstance(node, ast.Name):
            return texts.get(node.id)
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    tables: dict[str, dict[str, list[ast.expr]]] = {}
    displays: dict[ast.Dict, str] = {}
    rest: list[ast.stmt] = []
    for statement in tree.body:
        target, value = _assigned(statement)
        if isinstance(target, ast.Name) and isinstance(value, ast.Dict):
            keys = [key_of(key) for key in value.keys]
            if all(key is not None or node is None for key, node in zip(keys, value.keys, strict=True)):
                rows = tables.setdefault(target.id, {})
                for key, row in zip(keys, value.values, strict=True):
                    if key is not None:
                        rows.setdefault(key, []).append(row)
                displays[value] = target.id
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id in tables:
            key = key_of(target.slice)
            if key is not None and value is not None:
                tables[target.value.id].setdefault(key, []).append(value)
                continue
        rest.append(statement)

    together = {table: frozenset({table}) for table in tables}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            spread = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
            merged = {value.id for value in spread if isinstance(value, ast.Name) and value.id in tables}
            merged |= {displays[node]} if node in displays else set()
            group = frozenset().union(*(together[table] for table in merged))
            together |= dict.fromkeys(group, group)
    for display in displays:  # the rows are in ``tables``; only spread values (``**A``) stay with the rest
        display.values = [value for key, value in zip(display.keys, display.values, strict=True) if key is None]
        display.keys = [None] * len(display.values)
    return Source(
        rest=_piece(rest),
        tables={table: {key: _piece(nodes) for key, nodes in rows.items()} for table, rows in tables.items()},
        together=tuple(set(together.values())),
        registries=frozenset(
            table
            for table, rows in tables.items()
            if all(isinstance(node, ast.Call) for nodes in rows.values() for node in nodes)
        ),
    )


def _assigned(statement: ast.stmt) -> tuple[ast.expr | None, ast.expr | None]:
    """Target and value of an assignment to a single target; ``None`` for other statements."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return statement.targets[0], statement.value
    return (statement.target, statement.value) if isinstance(statement, ast.AnnAssign) else (None, None)


def _piece(nodes: Sequence[ast.AST]) -> Piece:
    strings: set[str] = set()
    code = _spell(list(nodes), strings)
    return Piece(code=fingerprint(code.encode()), words=frozenset(strings))


def _spell(node: Any, strings: set[str]) -> str:
    """A syntax tree as text, and its string constants into ``strings``.

    The text is the same on every Python version. That of ``ast.dump`` is not: versions differ in the fields that they
    have, and in whether they show empty ones.
    """
    if isinstance(node, list):
        return f"[{','.join(_spell(each, strings) for each in node if not _is_prose(each))}]"
    if not isinstance(node, ast.AST):
        # repr() would not do: its escapes depend on the Unicode tables of the Python version.
        return ascii(node)
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            strings.add(node.value)
        return f"Constant({type(node.value).__name__} {node.value!a})"
    if isinstance(node, ast.JoinedStr):
        node = ast.JoinedStr(values=list(_joined(node.values)))
    shown = (
        f"{name}={_spell(value, strings)}"
        for name, value in ast.iter_fields(node)
        if name not in MEANINGLESS and value is not None and value != []
    )
    return f"{type(node).__name__}({','.join(shown)})"


def _is_prose(node: Any) -> bool:
    """Whether a statement is only a string: a docstring, or the documentation of a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _joined(values: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Parts of an f-string, with neighbouring texts joined. Python versions split the texts differently."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        if text:
            yield ast.Constant(value=text)
        text = ""
        yield value
    if text:
        yield ast.Constant(value=text)
