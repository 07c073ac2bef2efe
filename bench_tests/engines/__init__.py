"""The libraries that split one GPT along all three axes, by name. An engine is a function and its row here.

A function takes the whole model, the mesh (axes ``pp``, ``dp``, ``tp``; one that is missing has one rank), the recipe
and how a step is cut, and gives back a :class:`~bench_tests.strategies.recipe.Trainee`::

    engine(model, mesh, recipe, *, micro_batches, micro_batch, schedule, **options)

It takes its rank's share of the model's weights, so that whatever the split, training starts from the same ones. The
trainee's ``run`` gets the ``micro_batches × micro_batch`` samples of this rank's data-parallel position and gives
their mean loss on every rank that holds the end of the model, else ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench_tests.strategies import Method, recorded_row
from pytest_trainbench.schema.mesh import MeshShape

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """An order of forward and backward passes over the stages of a pipeline.

    Each rank holds ``chunks`` stages. ``weights_apart``: the gradients of weights are computed apart from those of
    activations, which fills bubbles; ``mirrored``: the second chunks are dealt in reverse, so that the first rank also
    holds the end of the model (a V).
    """

    title: str
    chunks: int = 1
    weights_apart: bool = False
    mirrored: bool = False

    def stages(self, rank: int, ranks: int) -> list[int]:
        """The stages that ``rank`` holds, of ``chunks × ranks`` in all."""
        return [
            chunk * ranks + (ranks - 1 - rank if self.mirrored and chunk % 2 else rank) for chunk in range(self.chunks)
        ]


SCHEDULES = {
    "gpipe": Schedule(title="GPipe"),
    "1f1b": Schedule(title="1F1B"),
    "interleaved": Schedule(title="interleaved 1F1B", chunks=2),
    "interleaved-zb": Schedule(title="interleaved zero bubble", chunks=2, weights_apart=True),
    "zbv": Schedule(title="zero bubble, V", chunks=2, weights_apart=True, mirrored=True),
}


@dataclass(frozen=True, kw_only=True)
class Engine(Method):
    """``schedules`` are the keys of :data:`SCHEDULES` that it has. ``tensor_parallel`` is whether it splits layers;
    ``only_tensor_parallel``, whether the row differs from another one there alone. ``module`` must be importable for
    the row to run, and comes with the ``extra`` of this distribution. ``loss_tolerance``: forgetting to sum the
    gradients of embedding and head moves the losses of a small GPT by 0.008.
    """

    schedules: Sequence[str]
    tensor_parallel: bool = True
    only_tensor_parallel: bool = False
    module: str = "torch"
    extra: str = "suite"
    loss_tolerance: float = 0.005

    def missing(self, device_kind: str, precision: str) -> str | None:
        """Why the row cannot train in this number format on devices of this kind, or what to install first; ``None``
        where it can. Found out without importing anything large."""
        try:
            found = find_spec(self.module) is not None
        except ModuleNotFoundError:  # a package above it
            found = False
        if not found:
            return f"{self.module} is not installed: pip install 'pytest-trainbench[{self.extra}]'"
        return super().missing(device_kind, precision)

    def schedules_on(self, mesh: MeshShape) -> list[str | None]:
        """What to run on ``mesh``: every schedule where there is a pipeline, ``None`` for the one case of a mesh
        without, nothing where the engine has no such split."""
        if self.only_tensor_parallel if mesh.tp == 1 else not self.tensor_parallel:
            return []
        return list(self.schedules) if mesh.pp > 1 else [None]


ROUNDED_TOLERANCE = 0.05
"""Of engines that begin from weights rounded to 16 bits, as DeepSpeed's ZeRO does."""

ENGINES = {
    "torch": Engine(
        function="bench_tests.engines.torch_native:torch_native",
        title="PyTorch: DTensor, pipelining, DDP",
        schedules=tuple(SCHEDULES),
    ),
    "torch-sp": Engine(
        function="bench_tests.engines.torch_native:torch_native",
        title="PyTorch, sequence parallel",
        schedules=("1f1b",),
        only_tensor_parallel=True,
        options={"sequence_parallel": True},
    ),
    "megatron": Engine(
        function="bench_tests.engines.megatron:megatron",
        title="Megatron-Core",
        schedules=("1f1b", "interleaved"),
        module="megatron.core",
        extra="megatron",
        loss_tolerance=ROUNDED_TOLERANCE,
    ),
    "deepspeed": Engine(
        function="bench_tests.engines.deepspeed_pipeline:deepspeed_pipeline",
        title="DeepSpeed PipelineModule, ZeRO-1 in 16 bits",
        schedules=("1f1b",),
        tensor_parallel=False,
        module="deepspeed",
        loss_tolerance=ROUNDED_TOLERANCE,
    ),
}

# Where DTensor splits layers, its host takes several times as long as the device.
ENGINES |= {
    f"{name}-recorded": recorded_row(
        ENGINES[name],
        f"{ENGINES[name].title}, each step replayed as a CUDA graph",
        eager_steps=4,
        schedules=(),
        only_tensor_parallel=True,
    )
    for name in ("torch", "torch-sp")
}


def find_engine(name: str) -> Engine:
    """The row called ``name``; raises ``ValueError`` that lists the names for any other."""
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown; known: {', '.join(ENGINES)}, and reference on one rank")
    return ENGINES[name]


def axis(mesh: DeviceMesh, name: str) -> DeviceMesh | None:
    """The mesh along one axis, or ``None`` where nothing is split over it."""
    return mesh[name] if name in (mesh.mesh_dim_names or ()) and mesh[name].size() > 1 else None


def share_of(layers: int, stage: int, stages: int) -> slice:
    """The layers of one of ``stages`` equal stages. Raises ``ValueError`` where they cannot be equal."""
    if layers % stages:
        raise ValueError(f"{layers} layers cannot be dealt equally to {stages} pipeline stages")
    return slice(stage * layers // stages, (stage + 1) * layers // stages)
