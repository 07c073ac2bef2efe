"""A case: everything that changes the number, as JSON-able data."""

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

    ``builder`` is the import path ``package.module:function`` of a step builder, and ``params`` the JSON
    values it is called with: of what is given, a tuple becomes a list, and an enum that is also a text or a
    number becomes that. ``version`` is raised by hand when the builder starts to do other work under the same
    parameters. ``memory_cap_gb`` (GB of 10⁹ bytes) makes the device pretend to be smaller.
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
        # What ranks and baselines get through their files is then what the id is made of.
        object.__setattr__(self, "params", params)

    @property
    def function(self) -> str:
        """The builder's name, without its module."""
        return self.builder.rpartition(":")[2]

    @property
    def id(self) -> str:
        """The name that baselines are keyed by, made of all that changes the number and of nothing else.

        The module of the builder is left out, so that moving a file loses no baseline.
        """
        words = [f"{name}={_spell(self.params[name])}" for name in sorted(self.params)]
        if self.memory_cap_gb is not None:
            words.append(f"memory cap {self.memory_cap_gb!r} GB")
        if self.version != 1:
            words.append(f"v{self.version}")
        return f"{self.function}({', '.join(words)}) @ {self.mesh}"

    def apart(self, other: Case) -> list[str]:
        """In words, what ``other`` has that this case has not."""

        def facts(case: Case) -> dict[str, Any]:
            own = {"builder": case.function, "mesh": case.mesh, "version": case.version}
            own["memory cap"] = "not there" if case.memory_cap_gb is None else case.memory_cap_gb
            names = sorted({*self.params, *other.params})
            return own | {name: _spell(case.params[name]) if name in case.params else "not there" for name in names}

        before, now = facts(self), facts(other)
        return [f"{name} {before[name]} → {now[name]}" for name in before if before[name] != now[name]]

    @property
    def slug(self) -> str:
        """A file name for this case: readable, unique through a hash of :attr:`id`."""
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
    """Import path of a step builder given as a function or as a path already.

    Raises ``ValueError`` for a function that a fresh process could not import: a lambda, a nested function,
    one defined in ``__main__``.
    """
    if isinstance(builder, str):
        return builder
    module, name = inspect.getmodule(builder), getattr(builder, "__qualname__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not builder:
        raise ValueError(f"{builder!r} cannot be imported by another process: define it at a module's top")
    return f"{module.__name__}:{name}"


def _spell(value: Any) -> str:
    """Text without quotes where that cannot be taken for another value."""
    plain = isinstance(value, str) and re.fullmatch(r"[\w.+/:-]+", value) and not _is_json(value)
    return str(value) if plain else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
