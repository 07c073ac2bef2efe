"""Trainer's loops compute the same when the suite advances them step by step as when they run alone."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from ranks import ROOT, launched, pretended, printed
from torch.utils.flop_counter import FlopCounterMode

from bench_tests.steps import hf_trainer as trainer
from bench_tests.steps.turns import Turns
from bench_tests.training.recipe import Recipe
from pytest_trainbench.judge.validity import loss_fault
from pytest_trainbench.launch.result import LaunchResult
from pytest_trainbench.schema.record import Launch

CPU = torch.device("cpu")
WORK: dict[str, Any] = {"model": "deberta-tiny", "sequence": 16, "batch": 2, "precision": "fp32"}


def end(folder: Path, builder: str, *, dp: int, **params: Any) -> LaunchResult:
    return ranks.train(folder, f"bench_tests.steps.hf_trainer:{builder}", mesh=f"dp{dp}", **{**WORK, **params})


def run(folder: Path, builder: str, *, dp: int, **params: Any) -> Launch:
    done = launched(end(folder, builder, dp=dp, **params))
    assert (done.outcome, done.reason) == ("ok", None)
    return done


# The turns


def test_the_work_runs_only_in_its_turns_and_in_a_thread_of_its_own() -> None:
    seen: list[tuple[str, int]] = []

    def work() -> None:
        for number in itertools.count():
            seen.append(("work", number))
            assert threading.current_thread() is not threading.main_thread()
            turns.pause()

    turns = Turns(work, CPU)
    assert seen == []
    for number in range(3):
        turns.step()
        seen.append(("caller", number))
    turns.stop()
    assert seen == [(who, number) for number in range(3) for who in ("work", "caller")]


def test_a_step_raises_what_the_work_raised_and_so_do_later_steps() -> None:
    def work() -> None:
        turns.pause()
        raise MemoryError("planted")

    turns = Turns(work, CPU)
    turns.step()
    for _ in range(2):
        with pytest.raises(MemoryError, match="planted"):
            turns.step()


def test_the_callers_dispatch_mode_sees_the_work_of_its_turns() -> None:
    def work() -> None:
        while True:
            torch.ones(2, 3) @ torch.ones(3, 4)
            turns.pause()

    turns = Turns(work, CPU)
    turns.step()
    for steps in (1, 2):
        with FlopCounterMode(display=False) as counter:
            for _ in range(steps):
                turns.step()
        turns.step()
        assert counter.get_total_flops() == steps * 2 * 2 * 3 * 4


def test_a_step_after_the_end_of_the_work_raises() -> None:
    turns = Turns(lambda: None, CPU)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the work has ended"):
            turns.step()


@pytest.mark.parametrize("steps", [0, 1])
def test_stopped_work_cleans_up_and_its_thread_is_gone(steps: int) -> None:
    undone = ["cleaned up"] * steps

    def work() -> None:
        try:
            turns.pause()
        except Exception:  # the work's own handler must not swallow the end
            undone.append("swallowed")
        finally:
            undone.remove("cleaned up")

    before = threading.active_count()
    turns = Turns(work, CPU)
    for _ in range(steps):
        turns.step()
    turns.stop()
    assert (undone, threading.active_count()) == ([], before)


def test_a_process_can_end_while_the_work_waits_for_its_turn() -> None:
    program = """
import itertools, torch
from bench_tests.steps.turns import Turns
turns = Turns(lambda: [turns.pause() for _ in itertools.count()], torch.device("cpu"))
turns.step()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# Trainer


def plain_losses(steps: int, *, samples: int, evaluated: int = 0, lasts: int | None = None) -> list[float]:
    """Losses of a plain training loop with Trainer's defaults. Every step takes the whole data set.

    With ``lasts`` the learning rate falls to zero in the step after that many steps; otherwise it is constant. With
    ``evaluated`` the last element is the trained model's loss on that many other samples.
    """
    from bench_tests.models import find_model
    from bench_tests.models.bert import mask
    from bench_tests.training.data import POOL

    row = find_model(WORK["model"])
    module = row.build("cpu", sequence=WORK["sequence"])
    model = module.get_submodule("deberta")
    drawn = module.draw((samples + evaluated) // POOL)[0].flatten(0, 1)
    (tokens, labels), (others, other_labels) = (mask(part) for part in drawn.split([samples, evaluated]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=row.learning_rate, weight_decay=0.0)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = row.learning_rate * (1 if lasts is None else 1 - step / lasts)
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    if evaluated:
        with torch.no_grad():
            losses.append(float(model(input_ids=others, labels=other_labels).loss))
    return losses


@pytest.mark.parametrize(("dp", "accumulation"), [(1, 8), (2, 4)])
def test_training_has_the_losses_of_a_plain_loop(dp: int, accumulation: int, tmp_path: Path) -> None:
    """For this model Trainer's default would multiply the losses by the number of accumulated batches and ranks."""
    done = run(tmp_path / "job", "trainer_train", dp=dp, accumulation=accumulation, samples=16)
    assert done.losses == pytest.approx(plain_losses(len(done.losses), samples=16), rel=1e-3)


def test_ranks_train_on_the_samples_that_one_rank_accumulates(tmp_path: Path) -> None:
    """This holds in every epoch. Each step takes 8 of 32 samples, in an order that the seed determines."""
    one = run(tmp_path / "one", "trainer_train", dp=1, accumulation=4, samples=32)
    two = run(tmp_path / "two", "trainer_train", dp=2, accumulation=2, samples=32)
    assert loss_fault(two.losses, one.losses, tolerance=0.001) is None
    assert two.collectives["all_reduce"]["calls"] == 2, "one on each rank, in the thread that trains"
    assert not one.collectives, "a rank alone has nobody to be equal to"


def test_checkpointing_trains_as_without_it(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {"dp": 1, "accumulation": 4, "samples": 32}
    plain = run(tmp_path / "plain", "trainer_train", **shapes)
    saving = run(tmp_path / "saving", "trainer_train", **shapes, checkpointing=True)
    assert loss_fault(saving.losses, plain.losses, tolerance=1e-6) is None
    # The FLOPs are the model's, without the backward pass's recomputation.
    assert saving.metrics["flops_per_step"] == plain.metrics["flops_per_step"]


@pytest.mark.parametrize(
    ("builder", "params", "passes", "products"),
    [
        ("trainer_train", {"samples": 16, "accumulation": 2}, 2, 3),
        ("trainer_eval", {"samples": 16}, 1, 1),
    ],
)
def test_the_counter_sees_the_flops_of_each_ranks_passes(
    builder: str, params: dict[str, Any], passes: int, products: int, tmp_path: Path
) -> None:
    """The forward pass counts once, and a backward pass twice as much."""
    from bench_tests.models import find_model

    traces = end(tmp_path / "job", builder, dp=2, **params).traces
    trained = find_model(WORK["model"]).build("meta", sequence=WORK["sequence"]).flops(samples=2, passes=1)
    counted = passes * trained / 3 * products
    assert [(trace.flops_counted, trace.flops) for trace in traces] == [(counted, 2 * counted)] * 2


def test_evaluation_repeats_the_losses_of_the_untrained_model(tmp_path: Path) -> None:
    done = run(tmp_path / "job", "trainer_eval", dp=2, samples=16, warmup=6, steps=6)
    assert done.losses == pytest.approx([done.losses[step % 4] for step in range(13)])
    assert sum(done.losses[:4]) / 4 == pytest.approx(plain_losses(1, samples=16)[0])
    assert len(set(done.losses[:4])) == 4


@pytest.mark.parametrize(("dp", "accumulation", "train_loss_tolerance"), [(1, 8, 1e-3), (2, 4, 0.01)])
def test_a_whole_run_reports_what_trainer_logs(
    dp: int, accumulation: int, train_loss_tolerance: float, tmp_path: Path
) -> None:
    """Four epochs of one step with an evaluation after each.

    The training loss is the mean of the four losses of a plain loop. With two ranks it covers only the samples of the
    first rank. The evaluation loss is the trained model's loss on other samples.
    """
    shapes = {"accumulation": accumulation, "train_samples": 16, "eval_samples": 8, "epochs": 4}
    figures = run(tmp_path / "job", "trainer_run", dp=dp, **shapes).figures
    assert figures["train_samples_per_s"] * figures["train_runtime_s"] == pytest.approx(4 * 16, rel=0.01)
    assert figures["train_steps_per_s"] * figures["train_runtime_s"] == pytest.approx(4, rel=0.01)
    assert figures["eval_samples_per_s"] * figures["eval_runtime_s"] == pytest.approx(8, rel=0.01)
    assert figures["eval_steps_per_s"] * figures["eval_runtime_s"] == pytest.approx(4 / dp, rel=0.01)
    assert figures["eval_runtime_s"] < figures["train_runtime_s"]
    *train_losses, eval_loss = plain_losses(4, samples=16, evaluated=8, lasts=4)
    assert figures["train_loss"] == pytest.approx(sum(train_losses) / 4, rel=train_loss_tolerance)
    assert figures["eval_loss"] == pytest.approx(eval_loss, rel=1e-3)


def test_in_fp16_the_loss_scale_begins_where_the_suites_does() -> None:
    """The test uses a CPU scaler that has not scaled yet, in place of the one that accelerate creates for Trainer on a
    GPU."""
    scaler, suites = torch.amp.GradScaler("cpu"), Recipe(precision="fp16", learning_rate=0.1, device=CPU).scaler()
    trainer.begin_as_elsewhere(scaler)
    one = torch.ones(())
    assert (scaler.scale(one), scaler.state_dict()) == (suites.scale(one), suites.state_dict())
    assert scaler.get_scale() == 2**12


def test_a_reference_trains_its_steps_and_asks_for_no_whole_run(tmp_path: Path) -> None:
    shapes = {"accumulation": 4, "train_samples": 16, "eval_samples": 8, "epochs": 10**6}
    (trace,) = end(tmp_path / "job", "trainer_run", dp=1, reference_steps=3, **shapes).traces
    assert (len(trace.losses), trace.figures) == (3, {})


@pytest.mark.parametrize(
    ("builder", "dp", "params", "sentence"),
    [
        (
            "trainer_train", 2, {"accumulation": 3, "samples": 16},
            "training with 16 samples is not a whole number of steps of 12",
        ),
        ("trainer_eval", 1, {"samples": 3}, "evaluation with 3 samples is not a whole number of steps of 2"),
        ("trainer_eval", 2, {"samples": 8, "devices": 2}, "needs one rank with several devices, not 2 ranks"),
        ("trainer_eval", 1, {"samples": 8, "devices": 2}, "nn.DataParallel needs 2 GPUs, and torch sees 0"),
        ("trainer_eval", 1, {"samples": 8, "precision": "fp16"}, "Trainer does not support fp16 on a CPU: use bf16"),
        ("trainer_eval", 1, {"samples": 8, "model": "gpt-tiny"}, "only DeBERTa models here, and 'gpt-tiny' is not one"),
    ],
)  # fmt: skip
def test_incompatible_parameters_are_refused_in_one_sentence(
    builder: str, dp: int, params: dict[str, Any], sentence: str
) -> None:
    with pretended(f"dp{dp}") as mesh, pytest.raises(ValueError, match=re.escape(sentence)):
        getattr(trainer, builder)(mesh, **{**WORK, **params})


ONE_RANK = """
import os
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from bench_tests.steps.hf_trainer import Work
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
"""

AUTOCAST = """
torch.cuda.device_count = lambda: 2
for devices in (1, 2):
    work = Work(mesh=mesh, model="deberta-tiny", precision="bf16", sequence=16, batch=2, devices=devices)
    model, (data,) = work.build(8)
    seen = set()
    model.deberta.encoder.layer[0].intermediate.dense.register_forward_hook(lambda *call: seen.add(call[-1].dtype))
    trainer = work.trainer(model, train_dataset=data, eval_dataset=data, max_steps=1)
    trainer.train()
    trainer.evaluate()
    print(devices, trainer.args.train_batch_size, type(trainer.model_wrapped).__name__, *seen, os.environ["LOCAL_RANK"])
    print(devices, work.dtype, work.counts_flops, work.flops(passes=1))
"""


def said(program: str, folder: Path) -> list[str]:
    return printed(ONE_RANK + program, folder / "out").splitlines()


made_up_gpus = pytest.mark.skipif(
    torch.version.cuda is not None, reason="this torch has CUDA, and would look for the GPUs that are made up"
)


@made_up_gpus
def test_in_data_parallel_trainer_takes_the_larger_batch_and_has_no_autocast(tmp_path: Path) -> None:
    """transformers and accelerate do so in training and in evaluation, as docs/trainer.md says. Without GPUs,
    DataParallel calls the model directly, so the test sees whether autocast is around it."""
    lines = [line for line in said(AUTOCAST, tmp_path) if line.startswith(("1 ", "2 "))]
    assert lines[::2] == ["1 2 DebertaV2ForMaskedLM torch.bfloat16 0", "2 4 DataParallel torch.float32 0"]
    (alone, flops_alone), (both, flops_of_both) = (line.rsplit(maxsplit=1) for line in lines[1::2])
    assert (alone, both) == ("1 bf16 True", "2 fp32 False")
    assert float(flops_of_both) == 2 * float(flops_alone)


WHOLE_RUN = """
from bench_tests.steps.hf_trainer import trainer_run
torch.cuda.device_count = lambda: 2
work = {"model": "deberta-tiny", "precision": "fp32", "sequence": 16, "batch": 2, "accumulation": 2, "devices": 2}
step = trainer_run(mesh, train_samples=16, eval_samples=8, epochs=2, **work)
losses = [float(step.run()) for _ in range(3)]
figures = step.figures()
steps, evaluations = (figures[f"{name}_steps_per_s"] * figures[f"{name}_runtime_s"] for name in ("train", "eval"))
print("run", step.samples, len(losses), round(steps), round(evaluations))
"""


@made_up_gpus
def test_a_whole_run_in_data_parallel_takes_the_batches_of_its_devices(tmp_path: Path) -> None:
    """Two epochs of 16 samples have 2 × 2 × 2 samples a step. The evaluation of 8 samples has 2 × 2 a step."""
    assert [line for line in said(WHOLE_RUN, tmp_path) if line.startswith("run")] == ["run 8 3 4 2"]


FORWARDS = """
for checkpointing in (False, True):
    work = Work(mesh=mesh, model="deberta-tiny", precision="fp32", sequence=16, batch=2, checkpointing=checkpointing)
    model, (data,) = work.build(8)
    calls = []
    model.deberta.encoder.layer[0].intermediate.dense.register_forward_hook(lambda *call: calls.append(None))
    work.trainer(model, train_dataset=data, max_steps=3).train()
    print("forwards", len(calls))
"""


def test_checkpointing_recomputes_the_layers_in_the_backward_pass(tmp_path: Path) -> None:
    assert [line for line in said(FORWARDS, tmp_path) if line.startswith("forwards")] == ["forwards 3", "forwards 6"]


# Reports


def pytest_run(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", str(ROOT / "bench_tests" / "test_trainer.py"), "-q", "--hw", "cpu"]
    return subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_reporter_that_is_not_installed_is_named_before_anything_starts(tmp_path: Path) -> None:
    done = pytest_run("--report-to", "wandb", "--collect-only", folder=tmp_path)
    if done.returncode == 0:
        pytest.skip("wandb is installed")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--report-to wandb: wandb is not installed; pip install wandb" in done.stderr


def test_losses_are_reported_to_tensorboard_while_they_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = "--report-to", "tensorboard", "--launches", "1", "-k", "trainer_train and full and dp2"
    done = pytest_run(*options, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    (events,) = tmp_path.glob("runs/**/events.*")  # only rank 0 writes events, and the reference writes none
    assert events.parts[len(tmp_path.parts) :][:2] == ("runs", "deberta-tiny-fp32-4")
    log = EventAccumulator(str(events)).Reload()
    assert [event.step for event in log.Scalars("train/loss")][:1] == [10]
