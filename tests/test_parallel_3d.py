"""Training with every engine, schedule and split matches one unsharded process, step by step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch.distributed as dist
from ranks import launched, pretended, start
from samples import capped, failed, record

from bench_tests.engines import ENGINES, SCHEDULES, Engine
from bench_tests.engines.torch_native import join_ends
from bench_tests.steps.parallel import parallel_step
from bench_tests.strategies import REFERENCES
from bench_tests.tables.parallel_3d import ideal_bubble, parallel_3d
from bench_tests.test_parallel_3d import rows
from bench_tests.tolerances import tolerance
from pytest_trainbench.judge.validity import loss_fault
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.record import Launch

WORK: dict[str, Any] = {"model": "gpt-tiny", "sequence": 16, "global_batch": 4, "micro_batch": 1, "precision": "fp32"}
BUILDER = "bench_tests.steps.parallel:parallel_step"

STEPS = {"warmup": 4, "steps": 2}  # seven in all; on two cores a DTensor step of four ranks takes half a second


def train(folder: Path, *, builder: str = BUILDER, **case: Any) -> Launch:
    # Megatron-Core keeps its own process groups, and on a CPU it replaces methods of every tensor.
    apart = "megatron" if case["engine"] == "megatron" else ""
    return launched(ranks.train(folder, builder, apart=apart, **{**WORK, **STEPS, **case}))


def train_wrong(folder: Path, fault: str, **case: Any) -> Launch:
    return launched(start(folder, f"wrong_steps:{fault}", **{**WORK, **STEPS, "engine": "torch", **case}))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    """Losses of the unsharded model in each number format, for each reference of an engine."""
    folder = tmp_path_factory.mktemp("references")
    return {
        f"{reference} {precision}": train(folder / reference / precision, engine=reference, precision=precision)
        for reference in REFERENCES
        for precision in ("fp32", "bf16", "fp16")
    }


def split(engine: str, schedule: str | None, mesh: str) -> dict[str, Any]:
    if reason := ENGINES[engine].missing("cuda", "bf16"):
        pytest.skip(reason)
    builder = "recorded_steps:split" if ENGINES[engine].recorded else BUILDER
    case: dict[str, Any] = {"builder": builder, "engine": engine, "mesh": mesh}
    # Without replicas and stages a step has two micro-batches of two samples.
    return case | ({"schedule": schedule} if schedule else {}) | ({"micro_batch": 2} if mesh == "tp2" else {})


FOUR_STAGES = rows("pp4", schedules=["gpipe", "1f1b"])
"""Two of the four ranks hold neither the embedding nor the head."""


ALL_THREE = rows("dp2-tp2-pp2", schedules=["1f1b"])


@pytest.mark.parametrize(
    ("engine", "schedule", "mesh"), rows("dp2", "tp2", "pp2", "tp2-pp2", "dp2-pp2") + FOUR_STAGES + ALL_THREE
)
def test_in_fp32_every_split_has_the_unsharded_models_losses(
    engine: str, schedule: str | None, mesh: str, references: dict[str, Launch], tmp_path: Path
) -> None:
    one = train(tmp_path / "job", **split(engine, schedule, mesh))
    assert (one.outcome, one.reason) == ("ok", None)
    # Neither the recording nor the steps before it are timed.
    assert len(one.losses) == (10 if ENGINES[engine].recorded else 7)
    assert loss_fault(one.losses, references["reference fp32"].losses, tolerance=1e-4) is None
    assert one.metrics["flops_per_step"] == references["reference fp32"].metrics["flops_per_step"]
    if schedule in ("gpipe", "1f1b"):
        shape = MeshShape.parse(mesh)
        tp = shape.axes.get("tp", 1)
        # Activations go forward and gradients go back over each border between stages. A micro-batch has 16 tokens of
        # 128 floats. If tokens are split, each rank sends its part.
        sent = 2 * (shape.axes["pp"] - 1) * WORK["global_batch"] * tp
        size = 16 * 128 * 4 // (tp if engine == "torch-sp" else 1)
        assert one.collectives["send"] == {"calls": sent, "bytes": sent * size}
        assert one.collectives["recv"] == {"calls": sent, "bytes": 0}


ROUNDED = [
    *(row for row in rows("tp2", "dp2-pp2", schedules=[None, "1f1b"]) if not ENGINES[str(row.values[0])].recorded),
    *(row for row in rows("dp2-tp2") if row.values[0] == "torch-sp-recorded"),
]
"""Rows that show each engine's rounding within a layer and between replicas. One recording is enough: the
others compute the same."""


@pytest.mark.parametrize(("engine", "schedule", "mesh"), ROUNDED)
def test_in_bf16_every_engine_stays_within_the_suites_tolerance(
    engine: str, schedule: str | None, mesh: str, references: dict[str, Launch], tmp_path: Path
) -> None:
    one = train(tmp_path / "job", precision="bf16", **split(engine, schedule, mesh))
    assert (one.outcome, one.reason) == ("ok", None)
    truth = references[f"{ENGINES[engine].reference} bf16"]
    assert loss_fault(one.losses, truth.losses, tolerance(engine).allowed) is None


@pytest.mark.parametrize(("engine", "schedule", "mesh"), rows("dp2-pp2", schedules=["1f1b"]))
def test_in_fp16_every_engine_stays_within_the_suites_tolerance(
    engine: str, schedule: str | None, mesh: str, references: dict[str, Launch], tmp_path: Path
) -> None:
    one = train(tmp_path / "job", precision="fp16", **split(engine, schedule, mesh))
    assert (one.outcome, one.reason) == ("ok", None)
    truth = references[f"{ENGINES[engine].reference} fp16"]
    assert loss_fault(one.losses, truth.losses, tolerance(engine).allowed) is None


def test_only_the_ends_of_a_pipeline_share_a_group() -> None:
    """In two pipelines of four ranks, the inner ranks hold neither the embedding nor the head."""
    joined = []
    for rank in range(8):
        with pretended("pp4-dp2", rank=rank) as mesh:
            ends = join_ends(mesh)
            joined.append(ends and dist.get_process_group_ranks(ends))
    assert joined == [[0, 6], [1, 7], None, None, None, None, [0, 6], [1, 7]]


def test_embedding_and_head_that_drift_apart_are_caught(references: dict[str, Launch], tmp_path: Path) -> None:
    """Each end of the pipeline updates its copy of the tied weight with its own gradient only."""
    one = train_wrong(tmp_path / "job", "pipeline_with_loose_ends", mesh="pp2", schedule="1f1b")
    assert (one.outcome, one.reason) == ("ok", None), "no other guard sees it"
    truth = references["reference fp32"]
    assert "it trains wrong" in str(loss_fault(one.losses, truth.losses, tolerance("torch").allowed))


def test_attention_heads_in_the_wrong_order_are_caught(references: dict[str, Launch], tmp_path: Path) -> None:
    """Tensor-parallel ranks cut query, key and value as if the three were one block of columns."""
    one = train_wrong(tmp_path / "job", "tensor_parallel_with_mixed_heads", mesh="tp2", micro_batch=2)
    assert (one.outcome, one.reason) == ("ok", None), "no other guard sees it"
    truth = references["reference fp32"]
    assert "it trains wrong" in str(loss_fault(one.losses, truth.losses, tolerance("torch").allowed))


def test_pipeline_replicas_without_gradient_sums_are_caught(tmp_path: Path) -> None:
    one = train_wrong(tmp_path / "job", "pipeline_without_gradient_sums", mesh="dp2-pp2", schedule="1f1b")
    assert one.outcome == "invalid"
    assert str(one.reason).startswith("data-parallel replicas differ: ranks 0 and 1")


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"engine": "colossal"}, "engine 'colossal' is unknown; known: torch, torch-sp, megatron, deepspeed"),
        ({"engine": "torch", "mesh": "pp2"}, "engine 'torch' has no schedule None on this mesh; known: gpipe, 1f1b"),
        ({"engine": "torch", "schedule": "1f1b"}, "no schedule '1f1b' on this mesh; known: none without a pipeline"),
        ({"engine": "deepspeed", "mesh": "tp2"}, "engine 'deepspeed' has no tensor parallelism"),
        ({"engine": "torch-recorded", "mesh": "pp2", "schedule": "1f1b"}, "engine 'torch-recorded' has no pipeline"),
        *(
            ({"engine": engine, "precision": "fp8"}, "precision 'fp8' is unknown to the engines; known: fp32, tf32")
            for engine in ("torch", "reference")
        ),
        ({"engine": "torch", "micro_batch": 3}, "4 samples cannot be split over 1 replicas, 3 at a time"),
        (
            {"engine": "torch", "mesh": "pp3", "schedule": "1f1b"},
            "4 layers cannot be split equally into 3 pipeline stages",
        ),
    ],
)
def test_an_impossible_split_is_refused_in_one_sentence(case: dict[str, Any], sentence: str) -> None:
    if reason := ENGINES[str(case["engine"])].missing("cpu", "fp32") if case["engine"] in ENGINES else None:
        pytest.skip(reason)
    params = {**WORK, **case}
    with pretended(params.pop("mesh", "dp1")) as mesh, pytest.raises(ValueError, match=re.escape(sentence)):
        parallel_step(mesh, **params)


def test_an_engine_that_is_not_installed_says_what_to_install() -> None:
    row = Engine(function="a:b", title="", schedules=(), module="no_such_package.core", extra="some")
    assert row.missing("cpu", "fp32") == "no_such_package.core is not installed: pip install 'pytest-trainbench[some]'"
    assert ENGINES["torch"].missing("cpu", "fp32") is None


def test_every_rank_gets_its_stages() -> None:
    dealt = {name: [row.stages(rank, 3) for rank in range(3)] for name, row in SCHEDULES.items()}
    assert dealt == {
        "gpipe": [[0], [1], [2]],
        "1f1b": [[0], [1], [2]],
        "interleaved": [[0, 3], [1, 4], [2, 5]],
        "interleaved-zb": [[0, 3], [1, 4], [2, 5]],
        "zbv": [[0, 5], [1, 4], [2, 3]],
    }


@pytest.mark.parametrize(
    ("schedule", "ranks", "micro_batches", "bubble"),
    [
        (None, 1, 4, 0.0),
        ("gpipe", 4, 4, 3 / 7),
        ("1f1b", 2, 4, 1 / 5),
        ("interleaved", 4, 4, 3 / 11),
        ("interleaved-zb", 2, 4, 1 / 25),
        ("zbv", 2, 3, 0.0),
        ("zbv", 2, 2, None),  # too few micro-batches to fill the pipeline
    ],
)
def test_the_ideal_bubble_matches_the_papers(
    schedule: str | None, ranks: int, micro_batches: int, bubble: float | None
) -> None:
    assert ideal_bubble(schedule, ranks=ranks, micro_batches=micro_batches) == bubble


@pytest.mark.parametrize(
    ("mesh", "published"), [("dp2-tp2", "7.59 ± 0.14"), ("tp4-pp4", "6.24 ± 0.08"), ("tp2", ""), ("dp2-tp2-pp2", "")]
)
def test_published_figures_are_shown_for_the_same_number_of_devices_only(mesh: str, published: str) -> None:
    params = {"model": "gpt-1.3b", "engine": "torch", "global_batch": 4, "micro_batch": 1, "schedule": "1f1b"}
    one = Launch(step_ms=[1.0], metrics={"step_ms": 1.0, "samples_per_s": 4000.0})
    table = parallel_3d([record(one, of=Case(builder=BUILDER, mesh=MeshShape.parse(mesh), params=params))])
    assert table is not None
    assert table.get("published samples/s", [""])[0] == published


def test_the_table_shows_medians_beside_published_figures() -> None:
    work = {"model": "gpt-1.3b", "precision": "bf16", "sequence": 1024, "global_batch": 4, "micro_batch": 1}

    def case(mesh: str, **params: str) -> Case:
        return Case(builder=BUILDER, mesh=MeshShape.parse(mesh), params={**work, **params})

    launches = [
        Launch(
            step_ms=[100.0],
            metrics={
                "step_ms": 100.0,
                "compute_ms": compute_ms,
                "samples_per_s": samples_per_s,
                "peak_allocated_bytes": 2**30,
            },
        )
        for samples_per_s, compute_ms in ((38, 70), (40, 60), (90, 50))
    ]
    table = parallel_3d(
        [
            record(*launches, of=case("dp2-pp2", engine="deepspeed", schedule="1f1b")),
            record(failed("oom"), of=case("dp4", engine="torch")),
            capped(record(*launches, of=case("tp4", engine="torch"))),
            record(),
        ]
    )
    assert table is not None
    assert table.to_dict("records") == [
        {
            "engine": "PyTorch: DTensor, pipelining, DDP",
            "schedule": "",
            "TP": "1",
            "PP": "1",
            "DP": "4",
            "micro-batches": "1",
            "samples/s": "OOM",
            "peak MiB": "",
            "ideal bubble": "",
            "idle or waiting": "",
            "published samples/s": "9.63 ± 0.29",
            "published MiB": "25,061",
        },
        {
            "engine": "DeepSpeed PipelineModule, ZeRO-1 in 16 bits",
            "schedule": "1F1B",
            "TP": "1",
            "PP": "2",
            "DP": "2",
            "micro-batches": "2",
            "samples/s": "40.0",
            "peak MiB": "1,024",
            "ideal bubble": "33%",
            "idle or waiting": "40%",
            "published samples/s": "8.46 ± 0.17",
            "published MiB": "12,375",
        },
    ]


def test_there_is_no_table_without_rows() -> None:
    assert parallel_3d([record()]) is None
