"""A case's id contains everything that changes the measured number, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import sys
from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any

import pytest
from samples import case

from pytest_trainbench.schema.case import Case, builder_path
from pytest_trainbench.schema.mesh import MeshShape

FULL = Case(
    builder="suite.sharding:train_step",
    mesh=MeshShape(dp=2, tp=2),
    params={
        "strategy": "zero2",
        "model": "gpt-1.3b",
        "layers": 24,
        "flash": True,
        "clip": None,
        "betas": [0.9, 0.95],
    },
    version=3,
    memory_cap_gb=32.0,
)


def test_an_id_is_readable_and_contains_every_part() -> None:
    assert FULL.id == (
        "train_step(betas=[0.9, 0.95], clip=null, flash=true, layers=24, model=gpt-1.3b, strategy=zero2,"
        " memory cap 32.0 GB, v3) @ dp2-tp2"
    )


def test_an_id_ignores_the_module_the_parameter_order_and_defaults() -> None:
    here = Case(builder="a.b:train", mesh=MeshShape(), params={"x": 1, "y": {"p": 1, "q": 2}})
    there = Case(builder="c:train", mesh=MeshShape(), params=OrderedDict(y={"q": 2, "p": 1}, x=1))
    assert here.id == there.id == 'train(x=1, y={"p": 1, "q": 2}) @ dp1'


@pytest.mark.parametrize(
    "replaced",
    [
        {"builder": "suite.sharding:other"},
        {"mesh": MeshShape(dp=4)},
        {"params": {**FULL.params, "layers": 12}},
        {"params": {**FULL.params, "more": 1}},
        {"version": 4},
        {"version": 1},
        {"memory_cap_gb": 40.0},
        {"memory_cap_gb": 32.000001},
        {"memory_cap_gb": None},
    ],
)
def test_a_change_of_any_part_changes_id_and_slug(replaced: dict[str, Any]) -> None:
    other = dataclasses.replace(FULL, **replaced)
    assert other.id != FULL.id
    assert other.slug != FULL.slug


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": "1"}, {"x": 1}),
        ({"x": "true"}, {"x": True}),
        ({"x": "null"}, {"x": None}),
        ({"x": "[1]"}, {"x": [1]}),
        ({"x": 'a", "y=b'}, {"x": "a", "y": "b"}),
        ({"x": "1, y=2"}, {"x": 1, "y": 2}),
        ({"x": "a, y=b"}, {"x": "a", "y": "b"}),
        ({"x": "a) @ dp1"}, {"x": "a"}),
        ({"x": ""}, {"x": '""'}),
    ],
)
def test_different_parameters_never_share_an_id(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert case(**one).id != case(**other).id


def test_differences_of_two_cases_are_listed_in_words() -> None:
    one = Case(builder="mine:step", mesh=MeshShape(dp=2), params={"width": 64, "kind": "a"})
    assert one.apart(one) == []
    other = Case(builder="mine:other", mesh=MeshShape(dp=4), params={"width": 65, "depth": 2}, version=2)
    assert one.apart(other) == [
        "builder step → other",
        "mesh dp2 → dp4",
        "version 1 → 2",
        "depth not set → 2",
        "kind a → not set",
        "width 64 → 65",
    ]


def test_text_of_several_words_is_quoted() -> None:
    assert case(path="a/b-c_d.e:f+g", text="two words").id == ('train_step(path=a/b-c_d.e:f+g, text="two words") @ dp2')


def test_a_memory_cap_and_a_parameter_of_that_name_give_different_ids() -> None:
    capped = Case(builder="a:b", mesh=MeshShape(), memory_cap_gb=32)
    assert capped.id != Case(builder="a:b", mesh=MeshShape(), params={"memory_cap": "32GB"}).id


def test_a_slug_is_a_short_plain_file_name() -> None:
    assert re.fullmatch(r"train_step-gpt-1\.3b-zero2-dp2-tp2-[0-9a-f]{8}", FULL.slug)
    assert re.fullmatch(r"train_step-\.\.-etc-dp2-[0-9a-f]{8}", case(path="/../Etc/Ä").slug)
    assert len(case(text="x" * 500).slug) == 80 + 1 + 8


def test_a_case_survives_json() -> None:
    assert Case.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


class Precision(str, Enum):
    BF16 = "bf16"


class Number(float, Enum):
    HALF = 0.5


class Level(IntEnum):
    FULL = 2


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Precision.BF16, "bf16"),
        (Number.HALF, 0.5),
        (Level.FULL, 2),
        ((0.9, 0.95), [0.9, 0.95]),
        ({"of": (Precision.BF16, {1: Level.FULL})}, {"of": ["bf16", {"1": 2}]}),
    ],
)
def test_a_parameter_equals_its_value_after_json(given: object, plain: object) -> None:
    made = case(x=given)
    assert made.id == case(x=plain).id
    assert made.slug == case(x=plain).slug
    assert made == case(x=plain) == Case.from_json(json.loads(json.dumps(made.to_json())))
    assert repr(made.params["x"]) == repr(plain)


@pytest.mark.parametrize("value", ["two words", "", 0, -1, 2**70, 0.1, 1e-300, -0.0, True, None, [], {"b": 1, "a": []}])
def test_a_json_parameter_reaches_its_builder_unchanged(value: object) -> None:
    assert repr(case(x=value).params["x"]) == repr(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}, b"bytes", [lambda: None]])
def test_a_parameter_that_is_not_json_is_refused_and_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"^parameter rate=.* of suite\.sharding:train_step is not JSON: "):
        case(rate=value)


@pytest.mark.parametrize("builder", ["", "train", "a.b.train", "a b:train", "a:b:c", "a:b.c", "a/b.py:train"])
def test_a_builder_that_is_no_import_path_is_refused(builder: str) -> None:
    message = f"a step builder is named package.module:function, not {builder!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        case(builder=builder)


@pytest.mark.parametrize("cap", [0, -1.0, math.nan])
def test_a_memory_cap_must_be_above_zero(cap: float) -> None:
    with pytest.raises(ValueError, match="memory cap must be above 0 GB"):
        dataclasses.replace(FULL, memory_cap_gb=cap)


def top_level() -> None: ...


def test_a_function_at_the_top_of_a_module_has_an_import_path() -> None:
    assert builder_path(top_level) == f"{__name__}:top_level"
    assert builder_path("any.module:name") == "any.module:name"


class Holder:
    @staticmethod
    def method() -> None: ...


@pytest.mark.parametrize(
    "builder",
    [
        lambda: None,
        Holder.method,
        functools.partial(top_level),
        type("f", (), {"__call__": lambda self: None})(),
    ],
    ids=["lambda", "method", "partial", "callable object"],
)
def test_a_builder_that_another_process_cannot_import_is_refused(builder: Any) -> None:
    with pytest.raises(ValueError, match="cannot be imported by another process: define it at a module's top"):
        builder_path(builder)


def test_a_nested_builder_is_refused() -> None:
    def nested() -> None: ...

    with pytest.raises(ValueError, match="cannot be imported by another process"):
        builder_path(nested)


def test_a_builder_of_the_main_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> None: ...

    train.__module__, train.__qualname__ = "__main__", "train"
    monkeypatch.setattr(sys.modules["__main__"], "train", train, raising=False)
    with pytest.raises(ValueError, match="cannot be imported by another process"):
        builder_path(train)
