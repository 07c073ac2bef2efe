"""ORTModule trains as eager torch does, or it fails. It runs only where its package is installed."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from eager_training import batches_of, losses
from torch import Tensor, nn

from bench_tests.graphs import find_graph
from bench_tests.models import find_model

ROOT = Path(__file__).parents[1]

ORTMODULE = find_graph("ortmodule")

in_its_environment = pytest.mark.skipif(
    ORTMODULE.missing("cpu") is not None, reason="onnxruntime-training is in an environment of its own: bench-ortmodule"
)


def test_other_onnx_runtime_packages_do_not_count_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All these packages install into one folder, so ``import onnxruntime`` works with any of them."""
    monkeypatch.setattr("bench_tests.graphs._is_installed", lambda package: package != "onnxruntime-training")

    assert ORTMODULE.missing("cpu") == (
        "ONNX Runtime's ORTModule needs packages that are not installed here: pip install onnxruntime-training"
    )
    assert ORTMODULE.missing("cuda") == "ONNX Runtime's ORTModule works on cpu, not on cuda"


@pytest.mark.parametrize(("grid", "rows"), [("headline", []), ("full", ["ortmodule-32-dp2"])])
def test_ortmodule_is_a_row_of_the_full_grid_only(grid: str, rows: list[str]) -> None:
    """Without the package the row is skipped, and the default run need not show that."""
    command = [sys.executable, "-m", "pytest", "bench_tests", "--collect-only", "-q", "--hw", "cpu", "--grid", grid]
    done = subprocess.run([*command, "-k", "ortmodule"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    listed = [line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "::" in line]
    assert listed == rows, done.stdout


@in_its_environment
def test_bert_has_the_same_losses_in_ortmodule_as_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All thirty steps use the first step's session. The model keeps its type, its parameters and their names."""
    import onnxruntime

    made: list[onnxruntime.InferenceSession] = []

    class Watched(onnxruntime.InferenceSession):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    model = find_model("bert-tiny").build("cpu", sequence=32)
    batches = batches_of(model, 30)
    eager = copy.deepcopy(model)
    parameters = list(model.parameters())

    ORTMODULE.compile(model)

    assert type(model) is type(eager)
    assert all(mine is own for mine, own in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == list(eager.state_dict())
    assert losses(model, batches) == pytest.approx(losses(eager, batches), abs=1e-5)
    _, session = made  # ORTModule asks the first session for its memory use, and drops it
    options = session.get_session_options()
    assert options.intra_op_num_threads == torch.get_num_threads()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


class Squares(nn.Module):
    """A matrix product and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        loss: Tensor = self.layer(inputs).softmax(dim=-1).square().mean()
        return loss


@in_its_environment
def test_gradients_equal_those_of_torch() -> None:
    model = Squares()
    eager = copy.deepcopy(model)
    ORTMODULE.compile(model)
    inputs = torch.randn(4, 8)

    model(inputs).backward()
    eager(inputs).backward()

    for mine, true in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, true.grad)


class Unexportable(Squares):
    def forward(self, inputs: Tensor) -> Tensor:
        loss: Tensor = torch.linalg.eigvalsh(self.layer(inputs)).sum()
        return loss


@in_its_environment
def test_a_model_that_cannot_be_exported_raises() -> None:
    model = Unexportable()
    ORTMODULE.compile(model)
    assert os.environ["ORTMODULE_FALLBACK_POLICY"] == "FALLBACK_DISABLE"

    with pytest.raises(Exception, match="linalg_eigvalsh"):
        model(torch.randn(8, 8))


@in_its_environment
def test_the_first_loss_reveals_a_fallback_to_eager_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_tests.graphs.ortmodule  # noqa: F401  # forbids the fallback; the test allows it again

    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_ONNX_MODEL")
    model = Unexportable()
    ORTMODULE.compile(model)

    with pytest.raises(RuntimeError, match="ORTModule fell back to eager torch: the loss is of <SumBackward0"):
        model(torch.randn(8, 8))


@in_its_environment
def test_a_missing_extension_names_the_command_that_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench_tests.graphs.ortmodule_on_new_torch.EXTENSIONS", tmp_path)

    with pytest.raises(RuntimeError, match="not built here: python -m bench_tests"):
        ORTMODULE.compile(Squares())
