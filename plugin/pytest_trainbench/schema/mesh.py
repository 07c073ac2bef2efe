"""The shape of a device mesh: how many ranks a case needs, and how they are split into axes.

A shape is plain data. Only a rank builds a ``torch.distributed.DeviceMesh`` from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

AXES = ("pp", "dp", "cp", "tp")
"""Mesh axes from the outermost to the innermost. Neighbouring ranks share the innermost axis. So tensor parallelism,
which communicates most, gets the fastest links, and pipeline stages get the slowest."""


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Degrees of data, tensor, pipeline and context parallelism: ``dp``, ``tp``, ``pp`` and ``cp``.

    Their product is the world size. Raises ``ValueError`` for a degree that is not a positive integer.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            degree = getattr(self, field.name)
            if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
                raise ValueError(f"mesh axis {field.name!r} needs a positive whole number, not {degree!r}")

    @property
    def world_size(self) -> int:
        return math.prod(getattr(self, axis) for axis in AXES)

    def nodes(self, devices: int) -> int:
        """How many nodes the mesh needs, at ``devices`` per node. Raises ``ValueError`` if it needs several nodes and
        does not fill the last."""
        if self.world_size > devices and self.world_size % devices:
            raise ValueError(f"{self} needs {self.world_size} devices, which do not fill whole nodes of {devices}")
        return math.ceil(self.world_size / devices)

    @property
    def axes(self) -> dict[str, int]:
        """Axes of the rank's ``DeviceMesh``, outermost first: all with a degree above 1, and always ``dp``."""
        return {axis: getattr(self, axis) for axis in AXES if axis == "dp" or getattr(self, axis) > 1}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Position of the global ``rank`` on each axis of :attr:`axes`."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside a mesh of {self.world_size}")
        position = {}
        for axis, degree in reversed(self.axes.items()):
            rank, position[axis] = divmod(rank, degree)
        return position

    def __str__(self) -> str:
        """Short name, for example ``dp2-tp2``; a mesh of one rank is ``dp1``."""
        parts = [f"{name}{degree}" for name, degree in asdict(self).items() if degree > 1]
        return "-".join(parts) or "dp1"

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        """Inverse of ``str()``."""
        degrees: dict[str, int] = {}
        for part in text.split("-"):
            match = re.fullmatch(r"([a-z]+)(\d+)", part)
            if match is None or match[1] not in asdict(cls()) or match[1] in degrees:
                axes = ", ".join(asdict(cls()))
                raise ValueError(f"{text!r} is not a mesh: type axes with degrees such as dp2-tp2, of {axes}")
            degrees[match[1]] = int(match[2])
        return cls(**degrees)

    @classmethod
    def of(cls, value: MeshShape | str | Mapping[str, int] | int) -> MeshShape:
        """A shape from a shape, from text (``"dp2-tp2"``), from a mapping (``{"dp": 2}``) or from a data-parallel
        degree (``2``).

        Raises ``ValueError`` for an unknown axis.
        """
        if isinstance(value, MeshShape):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, int):
            return cls(dp=value)
        if unknown := [axis for axis in value if axis not in AXES]:
            raise ValueError(
                f"mesh axis {unknown[0]!r} is unknown: type axes such as mesh(dp=2, tp=2), of {', '.join(AXES)}"
            )
        return cls(**value)
