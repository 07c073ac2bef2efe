"""The digest of a file changes with the code that a case uses, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_trainbench.project.sources import UNSTEADY, Tree, differing, fingerprint, of_record, overall, union

CODE = '''"""Builds it."""

LIMIT = 3
"""How many there are."""

def build(name, *, scale=1.0):
    """In parts."""
    return f"{name}-{scale:>{LIMIT}}" "!" if scale else None  # with a comment
'''

SAME = {
    "as it was": CODE,
    "other prose": CODE.replace("Builds it", "Makes it").replace("In parts", "At once").replace("How many", "Number"),
    "other comments": CODE.replace("with a comment", "with another"),
    "other formatting": CODE.replace(
        "def build(name, *, scale=1.0):", "def build(\n    name,\n    *,\n    scale=1.0,\n):"
    ),
    "no prose": CODE.replace('"""Builds it."""\n', "").replace('    """In parts."""\n', ""),
    "split text": CODE.replace('"!"', '"" "!"'),
}

OTHER = {
    "a number": CODE.replace("LIMIT = 3", "LIMIT = 4"),
    "a default": CODE.replace("scale=1.0", "scale=1"),
    "a text": CODE.replace('"!"', '"?"'),
    "a format": CODE.replace(":>", ":<"),
    "a statement": CODE + "build('x')\n",
    "a syntax that this Python does not know": CODE + "x = = 1\n",
}


def digest(text: str, path: str = "a.py", **params: Any) -> str:
    return Tree({path: text.encode()}.get).digests([path], params)[path]


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_prose_and_formatting_change_no_digest(text: str) -> None:
    # The digest is typed in, because it must be the same on every version of Python that runs these tests.
    assert digest(text) == "dd0d096d9d96"


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_a_change_of_code_changes_the_digest(text: str) -> None:
    assert digest(text) != digest(CODE)


def test_a_file_that_is_not_python_is_hashed_by_its_bytes() -> None:
    assert digest(CODE, "a.so") == digest(CODE, "b.so") != digest(SAME["other prose"], "a.so")
    assert digest("x = = 1", "a.py") == digest("x = = 1", "a.txt")


ROWS = """
DEFAULT = "plain"
OPTIONS = {"bucket": 25, "static": True}
MODELS = {
    "small": Model(layers=2),
    "large": Model(layers=4, options=OPTIONS),
    DEFAULT: Model(layers=1),
}
MODELS["wide"] = wider(MODELS["small"])
EXTRA: dict[str, Model] = {"deep": Model(layers=8)}
def find(name):
    return {**MODELS, **EXTRA}[name]
"""


def changes(old: str, new: str, **params: Any) -> bool:
    """Whether this edit of ``ROWS`` changes the digest for a case with these parameters."""
    assert old in ROWS
    return digest(ROWS, **params) != digest(ROWS.replace(old, new), **params)


def test_a_new_row_changes_only_the_cases_that_name_it() -> None:
    for model in ("small", "wide", "deep", "plain"):
        assert not changes("MODELS = {", 'MODELS = {"new": Model(layers=9),', model=model)
        assert not changes('{"deep"', '{"new": Model(layers=9), "deep"', model=model)
        assert not changes("EXTRA:", 'MODELS["new"] = Model(layers=9)\nEXTRA:', model=model)
    assert not changes("MODELS = {", 'MODELS = {"new": Model(layers=9),', batch=8)
    assert not changes("layers=4", "layers=5", model="small")


@pytest.mark.parametrize(
    ("old", "new", "params"),
    [
        ("layers=2", "layers=3", {"model": "small"}),
        ("layers=2", "layers=3", {"sides": [{"model": "small"}]}),
        ("wider(", "twice(", {"model": "wide"}),
        ("layers=2", "layers=3", {"model": "wide"}),
        ("layers=8", "layers=9", {"model": "deep"}),
        ("layers=1)", "layers=3)", {"model": "plain"}),
        ("layers=4", "layers=5", {"family": "lar"}),
        ('"bucket": 25', '"bucket": 26', {"model": "small"}),
        ("**MODELS, **EXTRA", "**EXTRA, **MODELS", {"model": "small"}),
        ("def find", 'find("large")\ndef find', {"model": "small"}),
    ],
    ids=[
        "its row", "a nested parameter", "a row of a later statement", "a row that its row names", "a merged table",
        "a key with a name", "a key put together", "options", "the rest", "a row that code names",
    ],
)  # fmt: skip
def test_a_change_of_what_a_case_uses_changes_its_digest(old: str, new: str, params: dict[str, Any]) -> None:
    assert changes(old, new, **params)


def test_a_row_that_another_file_names_counts() -> None:
    """For example, a default of the builder names the row, without a parameter of the case."""
    builder = 'def step(mesh, *, model="large"): ...'

    def digests(rows: str) -> dict[str, str]:
        files = {"rows.py": rows.encode(), "steps.py": builder.encode()}
        return Tree(files.get).digests(files, {"batch": 8})

    assert differing(digests(ROWS), digests(ROWS.replace("layers=4", "layers=5"))) == ["rows.py"]
    assert differing(digests(ROWS), digests(ROWS.replace("layers=2", "layers=3"))) == []


def test_a_plain_table_counts_whole_if_no_parameter_names_a_row() -> None:
    table = 'SIZES = {"small": 1, "large": 2}'
    assert digest(table, batch=8) != digest(table.replace("2", "3"), batch=8)
    assert digest(table, size="small") == digest(table.replace("2", "3"), size="small")


def test_files_differ_if_a_digest_differs_or_a_file_is_missing() -> None:
    before = {"a.py": "1", "b.py": "2", "gone.py": "3"}
    assert differing(before, {"a.py": "1", "b.py": "9", "new.py": "4"}) == ["b.py", "gone.py", "new.py"]
    assert differing({"a.py": UNSTEADY}, {"a.py": UNSTEADY}) == ["a.py"]
    assert overall(before) == overall(dict(reversed(before.items()))) != overall({"a.py": "1"})
    assert overall({}) == ""


def test_a_file_that_changed_during_the_measurement_equals_no_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text(CODE)
    as_it_is = fingerprint(CODE.encode())
    noted = union([{"a.py": as_it_is, "b.py": as_it_is}, {"a.py": as_it_is, "b.py": "other", "gone.py": ""}])
    assert noted == {"a.py": as_it_is, "b.py": UNSTEADY, "gone.py": ""}
    assert of_record(tmp_path, noted, {}) == {"a.py": digest(CODE), "b.py": UNSTEADY, "gone.py": UNSTEADY}
    (tmp_path / "a.py").write_text(CODE + "# later\n")
    assert of_record(tmp_path, noted, {})["a.py"] == UNSTEADY
