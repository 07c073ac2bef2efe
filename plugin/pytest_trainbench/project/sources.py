"""Digests of a project's files, as far as the measured step depends on them.

A Python file counts without docstrings, comments and formatting, so that rewriting prose changes no digest. A table of
rows at the top of a module, such as ``MODELS = {"bert": Model(...), ...}``, counts by those of its rows that a case
uses, so that a new row changes no digest of a case which does not use it. Where that is not clear, more counts rather
than less.
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
"""Hexadecimal digits of SHA-256 that are kept."""

UNSTEADY = "changed while it was measured"
"""In the place of a file's digest where ranks or launches did not all have the same file. It equals no digest."""

MEANINGLESS = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of a syntax tree that follow from others, or mean nothing to a running program."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a file: a digest of its code, and every string constant in it."""

    code: str
    words: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file. ``tables``: its tables by name, each with its rows by key. ``together``: names of tables that the file
    merges into one (``{**A, **B}``); each table is in exactly one of these sets. ``registries``: tables in which every
    row is a call, such as ``Model(...)``. ``rest``: all other code."""

    rest: Piece
    tables: Mapping[str, Mapping[str, Piece]] = field(default_factory=dict)
    together: Sequence[frozenset[str]] = ()
    registries: frozenset[str] = frozenset()


class Tree:
    """The files of a project, each read and parsed once. ``read`` gives the bytes of a path relative to the project's
    root, or ``None`` where there is no such file."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._sources: dict[str, Source | None] = {}

    @classmethod
    def of(cls, root: Path) -> Tree:
        """The files under ``root`` as they are now."""
        return cls(lambda path: _read(root / path))

    def digests(self, files: Iterable[str], params: Mapping[str, Any]) -> dict[str, str]:
        """A digest of each of ``files`` that exists, by path, for a case with these parameters."""
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
    """What several ranks or launches noted of files, by path; :data:`UNSTEADY` where they do not agree."""
    merged: dict[str, str] = {}
    for one in noted:
        for path, digest in one.items():
            merged[path] = digest if merged.get(path, digest) == digest else UNSTEADY
    return dict(sorted(merged.items()))


def of_record(root: Path, noted: Mapping[str, str], params: Mapping[str, Any]) -> dict[str, str]:
    """What a record keeps of the files under ``root`` that its ranks ``noted`` by fingerprint: each one's digest for
    these parameters, or :data:`UNSTEADY` where the file is not what the ranks had."""
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
    """Paths of the files whose digests differ, or that only one side has."""
    return sorted(path for path in {*before, *now} if before.get(path) != now.get(path) or now.get(path) == UNSTEADY)


def overall(code: Mapping[str, str]) -> str:
    """One digest of all files; empty where there are none."""
    lines = (f"{path} {digest}" for path, digest in sorted(code.items()))
    return fingerprint("\n".join(lines).encode()) if code else ""


def words(value: Any) -> frozenset[str]:
    """Every text among a case's parameters: the keys of table rows that it may use."""
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

    A table counts row by row where ``asked`` names a row of it, or of one that it is merged with, and where it is a
    registry. Then a row counts if ``asked`` or a string constant of the code that counts is its key. Of a registry that
    ``asked`` names no row of, rows also count if their key contains an asked text: the key may be put together from it.
    All other tables count whole: they may be options that are passed on.
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
    """A file that is no Python code which this interpreter reads counts by its bytes."""
    whole = Source(rest=Piece(code=fingerprint(data)))
    if not path.endswith(".py"):
        return whole
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the project's own run says what is wrong with its code
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
        """A key that can be read off: a text, or the name of one."""
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
    for display in displays:  # only what is spread into a table stays with the rest
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
    """Target and value of an assignment to one target."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return statement.targets[0], statement.value
    return (statement.target, statement.value) if isinstance(statement, ast.AnnAssign) else (None, None)


def _piece(nodes: Sequence[ast.AST]) -> Piece:
    strings: set[str] = set()
    code = _spell(list(nodes), strings)
    return Piece(code=fingerprint(code.encode()), words=frozenset(strings))


def _spell(node: Any, strings: set[str]) -> str:
    """A syntax tree as text, the same on every Python version; its string constants go to ``strings``.

    ``ast.dump`` shows fields that only some versions have, and only some versions leave out empty ones.
    """
    if isinstance(node, list):
        return f"[{','.join(_spell(each, strings) for each in node if not _is_prose(each))}]"
    if not isinstance(node, ast.AST):
        # Not repr: which characters it shows as they are depends on the version's Unicode tables.
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
    """A docstring, of a module's constant too: a text that nobody takes."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _joined(values: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Parts of an f-string, neighbouring texts as one: where they are split depends on the version."""
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
