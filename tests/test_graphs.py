"""A graph that replaces a model computes what the model computes, and runs completely in the engine that it names."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import ranks
import torch
import torch.distributed as dist
from eager_training import batches_of, losses
from ranks import launched
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch.nn.parallel import DistributedDataParallel

from bench_tests.graphs import GRAPHS, find_graph
from bench_tests.graphs.onnx_runtime import LEVELS
from bench_tests.models import find_model
from bench_tests.models.trainable import Trainable
from bench_tests.strategies import DDP_OPTIONS
from pytest_trainbench.judge.validity import loss_fault
from pytest_trainbench.schema.record import Launch


class Watched(onnxruntime.InferenceSession):
    """A session that the test can find later, with a count of its runs."""

    made: list[Watched]

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.runs = 0
        self.made.append(self)

    def run_with_iobinding(self, *args: object) -> None:
        self.runs += 1
        super().run_with_iobinding(*args)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Watched]]:
    """Every session that the test creates, in order: forward, then backward."""
    Watched.made = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    torch._dynamo.reset()
    yield Watched.made
    torch._dynamo.reset()


def bert() -> Trainable:
    return find_model("bert-tiny").build("cpu", sequence=32)


def test_bert_has_the_same_losses_in_onnx_runtime_as_in_torch(sessions: list[Watched]) -> None:
    """Thirty steps. All of them run in the two sessions of the first step."""
    model = bert()
    batches = batches_of(model, 30)
    eager = copy.deepcopy(model)
    find_graph("ort-all").compile(model)

    assert losses(model, batches) == pytest.approx(losses(eager, batches), abs=1e-5)
    assert [session.runs for session in sessions] == [30, 30]


def test_bert_has_the_same_fp16_losses_in_onnx_runtime_as_in_torch(sessions: list[Watched]) -> None:
    model = bert()
    batches = batches_of(model, 12)
    eager = copy.deepcopy(model)
    find_graph("ort-all").compile(model)

    in_fp16 = losses(model, batches, torch.float16)

    assert in_fp16 == pytest.approx(losses(eager, batches, torch.float16), abs=2e-3)
    assert in_fp16 != pytest.approx(losses(bert(), batches), abs=1e-6), "it ran in fp32"
    assert [session.runs for session in sessions] == [12, 12]


class Squares(nn.Module):
    """A few products, so that compilation takes only a second."""

    def __init__(self, width: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, inputs: Tensor) -> Tensor:
        loss: Tensor = self.layers(inputs).square().mean()
        return loss


@pytest.mark.parametrize("level", LEVELS)
def test_the_optimisation_level_reaches_both_sessions(level: str, sessions: list[Watched]) -> None:
    model = Squares()
    find_graph(f"ort-{level}").compile(model)

    model(torch.randn(4, 8)).backward()

    levels = [session.get_session_options().graph_optimization_level for session in sessions]
    assert levels == [LEVELS[level], LEVELS[level]]


def test_weights_do_not_pass_through_the_session(sessions: list[Watched]) -> None:
    """The backward pass needs the weights. They are handed on directly, so no step copies them."""
    model = Squares()
    find_graph("ort-all").compile(model)

    model(torch.randn(4, 8)).backward()

    assert [8, 8] not in [output.shape for output in sessions[0].get_outputs()]


def test_gradients_match_torchs_for_a_non_contiguous_input(sessions: list[Watched]) -> None:
    model = Squares()
    eager = copy.deepcopy(model)
    find_graph("ort-all").compile(model)
    inputs = torch.randn(8, 4).t()

    model(inputs).backward()
    eager(inputs).backward()

    for mine, true in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, true.grad)


@pytest.mark.parametrize("graph", [name for name, graph in GRAPHS.items() if not graph.captures])
def test_a_graph_break_is_an_error(graph: str) -> None:
    class Breaks(Squares):
        def forward(self, inputs: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return super().forward(inputs)

    model = Breaks()
    find_graph(graph).compile(model)

    with pytest.raises(Unsupported, match="graph_break"):
        model(torch.randn(4, 8))


def test_an_operator_that_onnx_does_not_have_is_an_error(sessions: list[Watched]) -> None:
    class Unexportable(Squares):
        def forward(self, inputs: Tensor) -> Tensor:
            loss: Tensor = torch.linalg.eigvalsh(self.layers(inputs)).sum()
            return loss

    model = Unexportable()
    find_graph("ort-all").compile(model)

    with pytest.raises(BackendCompilerFailed, match="linalg_eigh"):
        model(torch.randn(8, 8))
    assert sessions == []


def test_bf16_has_no_arithmetic_on_a_cpu(sessions: list[Watched]) -> None:
    """This is why the graph-optimisation suite uses fp16 for mixed precision."""
    model = Squares().to(torch.bfloat16)
    find_graph("ort-all").compile(model)

    with pytest.raises(BackendCompilerFailed, match="NOT_IMPLEMENTED"):
        model(torch.randn(4, 8, dtype=torch.bfloat16))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank in this process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddp_splits_the_graph_at_bucket_boundaries(alone: None, sessions: list[Watched]) -> None:
    """The split lets DDP reduce gradients while others are still computed."""
    model = Squares(width=512, layers=4)  # 1 MiB a layer
    eager = copy.deepcopy(model)
    find_graph("ort-all").compile(model)
    batches = torch.randn(6, 4, 512)

    options: dict[str, Any] = {**DDP_OPTIONS, "bucket_cap_mb": 1}
    split = losses(DistributedDataParallel(model, **options), batches)

    assert split == pytest.approx(losses(eager, batches), rel=1e-4)
    assert len(sessions) > 2
    assert {session.runs for session in sessions} == {6}


def train(folder: Path, *, dp: int = 2, **params: Any) -> Launch:
    work: dict[str, Any] = {"model": "bert-tiny", "sequence": 16, "micro_batch": 2}
    # Compiling changes its process permanently.
    way = ranks.start if "graph" in params else ranks.train
    return launched(way(folder, "bench_tests.steps.train:train_step", mesh=f"dp{dp}", steps=4, **{**work, **params}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "precision", "tolerance"),
    [
        ("inductor", "fp32", 0.001),
        ("ort-all", "fp32", 0.001),
        ("ort-all", "fp16", 0.01),
    ],
)
def test_two_ranks_have_the_losses_of_the_unsharded_eager_model(
    graph: str, precision: str, tolerance: float, tmp_path: Path
) -> None:
    reference = train(tmp_path / "reference", dp=1, strategy="reference", micro_batches=2, precision=precision)

    one = train(tmp_path / "job", strategy="ddp", graph=graph, precision=precision)

    assert (one.outcome, one.reason) == ("ok", None)
    assert loss_fault(one.losses, reference.losses, tolerance) is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench_tests.graphs._is_installed", lambda package: package != "onnxruntime-gpu")

    found = {kind: find_graph("ort-all").missing(kind) for kind in ("cpu", "cuda", "hpu")}

    title = "ONNX Runtime graph optimisation"
    assert found == {
        "cpu": None,
        "cuda": f"{title} needs packages that are not installed here: pip install onnxruntime-gpu",
        "hpu": f"{title} works on cpu and cuda, not on hpu",
    }
    assert find_graph("inductor").missing("hpu") is None


def test_an_unknown_graph_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match="graph 'ort' is unknown; known: inductor, ort-disable"):
        find_graph("ort")
