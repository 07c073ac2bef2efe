"""Pictures show the measurements, on a self-contained page."""

from __future__ import annotations

from pathlib import Path

import pytest
import samples

from bench_tests.results import plots as pictures
from bench_tests.strategies import PLAIN_DDP
from bench_tests.test_ddp_scaling import smoke
from pytest_trainbench.schema.record import Launch, Record, dump

pytest.importorskip("plotly")

STEP = "bench_tests.steps.train:train_step"


def ddp(strategy: str, mesh: str, samples_per_s: float, *, model: str = "resnet50", micro_batch: int = 32) -> Record:
    case = samples.case(builder=STEP, mesh=mesh, model=model, strategy=strategy, micro_batch=micro_batch)
    return samples.record(*(samples.launch(samples_per_s=samples_per_s),) * 3, of=case)


def scaled(mesh: str, *losses: float, micro_batches: int = 2) -> Record:
    params = {"model": "bert-large", "strategy": "zero1", "micro_batch": 4, "learning_rate": 0.1}
    params["micro_batches"] = micro_batches
    one = Launch(step_ms=[100.0] * 3, steady_from=1, losses=list(losses), metrics={"samples_per_s": 1.0})
    return samples.record(one, of=samples.case(builder=STEP, mesh=mesh, **params))


ACCELERATED = [
    ddp(PLAIN_DDP, "dp1", 100.0),
    ddp(PLAIN_DDP, "dp2", 150.0),
    ddp(PLAIN_DDP, "dp4", 200.0),
    ddp("powersgd", "dp2", 180.0),
    ddp("powersgd", "dp4", 300.0),
    ddp("local-sgd", "dp4", 400.0),
]
SCALED = [scaled("dp1", 4.0, 3.0, 2.0), scaled("dp2", 4.0, 2.5, 1.5)]


def test_each_model_method_and_number_of_devices_has_a_dot() -> None:
    figure = pictures.acceleration(ACCELERATED)
    assert figure is not None
    drawn = {
        (strategy, trace.name, *trace.x, *trace.y, *trace.text)
        for trace in figure.data
        for strategy in ("powersgd", "local-sgd")
        if f"strategy={strategy}<" in trace.hovertemplate
    }
    assert drawn == {
        ("powersgd", "2", 0.75, 1.2, "resnet50"),
        ("powersgd", "4", 0.5, 1.5, "resnet50"),
        ("local-sgd", "4", 0.5, 2.0, "resnet50"),
    }
    assert {"powersgd", "local-sgd"} <= {title.text for title in figure.layout.annotations}
    assert len({trace.marker.color for trace in figure.data}) == 2


def test_losses_are_drawn_over_the_samples_trained_on_before() -> None:
    figure = pictures.losses(SCALED)
    assert figure is not None
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data] == [
        ("1", [0, 8, 16], [4.0, 3.0, 2.0]),
        ("2", [0, 16, 32], [4.0, 2.5, 1.5]),
    ]


def test_the_key_lists_numbers_of_devices_in_order() -> None:
    figure = pictures.losses([scaled("dp1", 4.0), scaled("dp4", 4.0), scaled("dp2", 4.0, micro_batches=1)])
    assert figure is not None
    assert [trace.name for trace in figure.data if trace.showlegend] == ["1", "2", "4"]


def test_the_smoke_profile_fills_the_picture_of_acceleration() -> None:
    found = [ddp(work.strategy, mesh, 100.0, model=work.model, micro_batch=work.micro_batch) for work, mesh in smoke()]
    assert pictures.acceleration(found) is not None


def test_the_page_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, record in enumerate([*ACCELERATED, *SCALED]):
        (tmp_path / f"{number}.json").write_text(dump(record.to_json()), encoding="utf-8")
    pictures.main(str(tmp_path))
    page = capsys.readouterr().out
    assert "Acceleration of data parallelism" in page and "Loss over samples" in page
    assert "<script src=" not in page and "<link" not in page


def test_without_enough_records_the_command_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"is neither a folder with records nor hardware with baselines"):
        pictures.main(str(tmp_path))
    (tmp_path / "one.json").write_text(dump(ACCELERATED[0].to_json()), encoding="utf-8")
    with pytest.raises(SystemExit, match=r": 1 records are not enough for a plot, which needs ddp_scaling"):
        pictures.main(str(tmp_path))
