"""The suite's charts show what its records hold."""

from __future__ import annotations

import samples

from bench_tests.charts import CHARTS, charts
from bench_tests.charts.layers import layers
from bench_tests.charts.training import acceleration, losses, scaling
from bench_tests.strategies import PLAIN_DDP
from bench_tests.test_ddp_scaling import smoke
from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.report.chart import Bars, Chart
from pytest_trainbench.schema.record import Launch, Record

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


def drawn(chart: object) -> dict[str, list[tuple[float, float]]]:
    """Name of a series -> its dots."""
    assert isinstance(chart, Chart)
    return {one.name: [(dot.x, dot.y) for dot in one.dots] for one in chart.series}


def test_each_model_method_and_number_of_devices_has_a_dot() -> None:
    assert {chart.title: drawn(chart) for chart in acceleration(ACCELERATED)} == {
        "powersgd": {"2 devices": [(0.75, 1.2)], "4 devices": [(0.5, 1.5)]},
        "local-sgd": {"4 devices": [(0.5, 2.0)]},
    }


def test_losses_are_drawn_over_the_samples_trained_on_before() -> None:
    (chart,) = losses(SCALED)
    assert drawn(chart) == {"1 device": [(0, 4.0), (8, 3.0), (16, 2.0)], "2 devices": [(0, 4.0), (16, 2.5), (32, 1.5)]}


def test_series_are_in_the_order_of_their_number_of_devices() -> None:
    (chart,) = losses([scaled("dp4", 4.0), scaled("dp1", 4.0), scaled("dp2", 4.0)])
    assert list(drawn(chart)) == ["1 device", "2 devices", "4 devices"]


def test_the_ideal_of_scaling_starts_at_the_fewest_devices() -> None:
    (chart,) = scaling(ACCELERATED)
    found = drawn(chart)
    assert found["ideal"] == [(1, 100.0), (4, 400.0)]
    assert found[PLAIN_DDP] == [(1, 100.0), (2, 150.0), (4, 200.0)]
    assert found["powersgd"] == [(2, 180.0), (4, 300.0)]


def test_layers_are_beside_the_measured_and_the_theoretical_product() -> None:
    params = {"layer": "bert", "direction": "fwd", "mode": "eager", "precision": "bf16", "counting": "exact"}
    shape = {"hidden": 1024, "batch": 16, "sequence": 128}
    layer = samples.case(builder="bench_tests.steps.layer:layer_pass", mesh="dp1", **params, **shape)
    product = samples.case(builder="bench_tests.steps.layer:matrix_product", mesh="dp1", precision="bf16", size=4096)
    found = layers(
        [
            samples.record(samples.launch(tflops_per_device=300.0), of=layer, hardware="h200-sxm-141gb"),
            samples.record(samples.launch(tflops_per_device=660.0), of=product, hardware="h200-sxm-141gb"),
        ]
    )
    (chart,) = found
    assert isinstance(chart, Bars)
    assert chart.bars == (("BERT layer, eager, 1024", 300.0),)
    assert [value for value, _ in chart.level] == [TABLE["h200-sxm-141gb"].peak_tflops["bf16"], 660.0]


def test_the_smoke_profile_fills_the_chart_of_acceleration() -> None:
    assert acceleration([ddp(w.strategy, mesh, 100.0, model=w.model, micro_batch=w.micro_batch) for w, mesh in smoke()])


def test_groups_without_charts_are_left_out() -> None:
    assert charts([]) == {}
    assert list(charts([*ACCELERATED, *SCALED])) == list(CHARTS)[:3]
