"""The libraries that split one GPT along all three axes, by name. An engine is a function and its row here.

An engine's function returns a :class:`~bench_tests.training.recipe.Trainee`. It takes the whole model, the mesh, the
recipe, and how a step is split::

    engine(model, mesh, recipe, *, micro_batches, micro_batch, schedule, **options)

The mesh has axes ``pp``, ``dp`` and ``tp``; a missing axis has one rank. The function takes its rank's share of the
model's weights, so training starts from the same weights under every split. The trainee's ``run`` takes the
``micro_batches × micro_batch`` samples of the rank's data-parallel position. It returns their mean loss on every rank
that holds the end of the model, and ``None`` on other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench_tests.strategies import REFERENCES, ROUNDED, Method, recorded_row
from pytest_trainbench import MeshShape

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """An order of forward and backward passes over the stages of a pipeline.

    Each rank holds ``chunks`` stages. With ``weights_apart`` the gradients of weights are computed separately from the
    gradients of activations, which fills bubbles. With ``mirrored`` the second chunks go to the ranks in reverse order,
    so the first rank also holds the end of the model (a V).
    """

    title: str
    chunks: int = 1
    weights_apart: bool = False
    mirrored: bool = False

    def stages(self, rank: int, ranks: int) -> list[int]:
        """The stages that ``rank`` holds, out of ``chunks × ranks`` stages."""
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
    """A library that splits the GPT.

    ``schedules`` are the engine's keys in :data:`SCHEDULES`. ``tensor_parallel`` says whether the engine splits layers.
    ``only_tensor_parallel`` says whether the row differs from another row only where layers are split; the row then
    runs only there. ``module`` must be importable, and the ``extra`` of this distribution installs it.
    """

    schedules: Sequence[str]
    tensor_parallel: bool = True
    only_tensor_parallel: bool = False
    module: str = "torch"
    extra: str = "suite"

    def missing(self, device_kind: str, precision: str) -> str | None:
        """Why the row cannot train in this number format on this kind of device, or what to install first.

        ``None`` if the row can train. The check imports nothing large.
        """
        try:
            found = find_spec(self.module) is not None
        except ModuleNotFoundError:  # a parent package is missing
            found = False
        if not found:
            return f"{self.module} is not installed: pip install 'pytest-trainbench[{self.extra}]'"
        return super().missing(device_kind, precision)

    def schedules_on(self, mesh: MeshShape) -> list[str | None]:
        """The schedules to run on ``mesh``.

        All of the engine's schedules on a mesh with a pipeline; ``[None]`` on a mesh without one; nothing if the engine
        does not support the split.
        """
        if self.only_tensor_parallel if mesh.tp == 1 else not self.tensor_parallel:
            return []
        return list(self.schedules) if mesh.pp > 1 else [None]


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
        reference=ROUNDED,
        module="megatron.core",
        extra="megatron",
    ),
    "deepspeed": Engine(
        function="bench_tests.engines.deepspeed_pipeline:deepspeed_pipeline",
        title="DeepSpeed PipelineModule, ZeRO-1 in 16 bits",
        schedules=("1f1b",),
        reference=ROUNDED,
        tensor_parallel=False,
        module="deepspeed",
    ),
}

# With DTensor-split layers a step takes the host several times as long as the device.
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
    """The row called ``name``. Raises ``ValueError`` with the known names for any other name."""
    if name not in ENGINES:
        raise ValueError(
            f"engine {name!r} is unknown; known: {', '.join(ENGINES)}; on one rank: {', '.join(REFERENCES)}"
        )
    return ENGINES[name]


def axis(mesh: DeviceMesh, name: str) -> DeviceMesh | None:
    """The mesh along one axis, or ``None`` if nothing is split over that axis."""
    return mesh[name] if name in (mesh.mesh_dim_names or ()) and mesh[name].size() > 1 else None


def share_of(layers: int, stage: int, stages: int) -> slice:
    """The layers of one of ``stages`` equal stages. Raises ``ValueError`` if the stages cannot be equal."""
    if layers % stages:
        raise ValueError(f"{layers} layers cannot be split equally into {stages} pipeline stages")
    return slice(stage * layers // stages, (stage + 1) * layers // stages)
