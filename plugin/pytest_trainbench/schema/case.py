"""A case: everything that determines what a step measures, as JSON-able data."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_trainbench.schema.mesh import MeshShape


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration of one training step.

    builder:
        Import path of a step builder, ``package.module:function``.
    params:
        The step builder's arguments, as JSON values. A tuple becomes a list. An enum that is a ``str`` or a number
        becomes that ``str`` or number.
    version:
        Raise it by hand when the builder starts to do other work under the same parameters.
    memory_cap_gb:
        Limit of the device's memory, in GB of 10⁹ bytes; ``None`` for all of the memory.

    Raises ``ValueError`` for a builder that is no import path, a cap that is not above 0, and parameters that are not
    JSON.
    """

    builder: str
    mesh: MeshShape
    params: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    memory_cap_gb: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.]+:\w+", self.builder):
            raise ValueError(f"a step builder is named package.module:function, not {self.builder!r}")
        if self.memory_cap_gb is not None and not self.memory_cap_gb > 0:
            raise ValueError(f"memory cap must be above 0 GB, not {self.memory_cap_gb!r}")
        params = {}
        for name, value in self.params.items():
            try:
                params[name] = json.loads(json.dumps(value, allow_nan=False))
            except (TypeError, ValueError) as error:
                where = f"parameter {name}={value!r} of {self.builder}"
                raise ValueError(f"{where} is not JSON: {error}") from None
        # Ranks and baselines read the parameters from JSON files. With the same values here, their id is the same.
        object.__setattr__(self, "params", params)

    @property
    def function(self) -> str:
        """The builder's name, without its module."""
        return self.builder.rpartition(":")[2]

    @property
    def id(self) -> str:
        """The key of the case's baseline. It names all fields except the builder's module, so that a builder may move
        to another file and keep its baseline."""
        words = [f"{name}={_spell(self.params[name])}" for name in sorted(self.params)]
        if self.memory_cap_gb is not None:
            words.append(f"memory cap {self.memory_cap_gb!r} GB")
        if self.version != 1:
            words.append(f"v{self.version}")
        return f"{self.function}({', '.join(words)}) @ {self.mesh}"

    def apart(self, other: Case) -> list[str]:
        """Every difference between this case and ``other``, as ``name before → after``."""

        def facts(case: Case) -> dict[str, Any]:
            own = {"builder": case.function, "mesh": case.mesh, "version": case.version}
            own["memory cap"] = "not set" if case.memory_cap_gb is None else case.memory_cap_gb
            names = sorted({*self.params, *other.params})
            return own | {name: _spell(case.params[name]) if name in case.params else "not set" for name in names}

        before, now = facts(self), facts(other)
        return [f"{name} {before[name]} → {now[name]}" for name in before if before[name] != now[name]]

    @property
    def slug(self) -> str:
        """A readable file name for this case. A hash of :attr:`id` makes it unique."""
        words = [value for _, value in sorted(self.params.items()) if isinstance(value, str)]
        text = "-".join([self.function, *words, str(self.mesh)]).lower()
        readable = re.sub(r"[^a-z0-9._]+", "-", text).strip("-")
        return f"{readable[:80]}-{hashlib.sha256(self.id.encode()).hexdigest()[:8]}"

    def to_json(self) -> dict[str, Any]:
        return {
            "builder": self.builder,
            "mesh": str(self.mesh),
            "params": dict(self.params),
            "version": self.version,
            "memory_cap_gb": self.memory_cap_gb,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        return cls(**{**data, "mesh": MeshShape.parse(data["mesh"])})


def builder_path(builder: str | Callable[..., Any]) -> str:
    """Import path of a step builder. A ``builder`` that is a path already is returned as it is.

    Raises ``ValueError`` for a function that another process cannot import: a lambda, a nested function or a function
    of ``__main__``.
    """
    if isinstance(builder, str):
        return builder
    module, name = inspect.getmodule(builder), getattr(builder, "__qualname__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not builder:
        raise ValueError(f"{builder!r} cannot be imported by another process: define it at a module's top")
    return f"{module.__name__}:{name}"


def _spell(value: Any) -> str:
    """The value as JSON. A string loses its quotes, unless it could then be read as another JSON value."""
    plain = isinstance(value, str) and re.fullmatch(r"[\w.+/:-]+", value) and not _is_json(value)
    return str(value) if plain else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
