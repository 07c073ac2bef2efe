"""Step builders around transformers' ``Trainer``: its loops are the real ones, advanced step by step.

What ``Trainer`` does besides the model's work (loading data, clipping, bookkeeping, its own waits for the device) is
measured with it. It is set up as a careful user would: nothing is logged or saved unless asked for.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

from bench_tests.models import find_model
from bench_tests.models.bert import Deberta, mask
from bench_tests.steps.turns import Turns
from bench_tests.training.data import POOL
from bench_tests.training.recipe import LOSS_SCALE_POWER, PRECISIONS
from pytest_trainbench import Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ENDLESS = 1_000_000
"""Optimisation steps that a training is announced with when somebody else decides when it ends."""

LOGGING_STEPS = 10
"""Between two reports of the loss, where there is somebody to report to."""

LAUNCHER = ("LOCAL_RANK", "WORLD_SIZE")
"""Environment variables that tell ``Trainer`` that it was started as a rank."""

LOGGED = {
    "train_runtime_s": "train_runtime",
    "train_samples_per_s": "train_samples_per_second",
    "train_steps_per_s": "train_steps_per_second",
    "train_loss": "train_loss",
    "eval_runtime_s": "eval_runtime",
    "eval_samples_per_s": "eval_samples_per_second",
    "eval_steps_per_s": "eval_steps_per_second",
    "eval_loss": "eval_loss",
}
"""Figure of a whole run -> the name that ``Trainer`` logs it under."""


def trainer_train(mesh: DeviceMesh, *, samples: int, **work: Any) -> Step:
    """One optimisation step of ``Trainer.train()`` over a data set of ``samples`` samples, epoch after epoch.

    ``work``: fields of :class:`Work`. Raises ``ValueError`` for what does not fit together.
    """
    step, _ = _training(Work(mesh=mesh, **work), samples)
    return step


def trainer_eval(mesh: DeviceMesh, *, samples: int, **work: Any) -> Step:
    """One prediction step of ``Trainer.evaluate()``, which is called again and again over ``samples`` samples.

    A step that ends one evaluation and begins the next takes as long as that takes. ``work``: fields of :class:`Work`.
    Raises ``ValueError`` for what does not fit together.
    """
    work_ = Work(mesh=mesh, **work)
    work_.whole("evaluation", samples, work_.batch_of_all)
    model, (data,) = work_.build(samples)
    trainer = work_.trainer(model, eval_dataset=data)

    def evaluate() -> None:
        while True:
            trainer.evaluate()

    turns = Turns(evaluate, work_.device)
    trainer.add_callback(_Pauses(turns.pause))
    loss = torch.zeros((), device=work_.device)

    def run() -> Tensor:
        nonlocal loss
        turns.step()
        loss = trainer.step_loss()
        return loss

    return Step(
        run=run,
        samples=work_.batch_of_all,
        tokens=work_.batch_of_all * work_.sequence,
        flops=work_.flops(passes=1) / 3,  # forward alone, of which backward is twice as much
        counts_flops=work_.counts_flops,
        dtype=work_.dtype,
        devices=work_.devices,
        parameters=lambda: [loss],
        trains=False,
    )


def trainer_run(mesh: DeviceMesh, *, train_samples: int, eval_samples: int, epochs: int, **work: Any) -> Step:
    """The step of :func:`trainer_train`; its figures are what ``Trainer`` logs of a whole run that follows.

    The run is one call of ``Trainer.train()``, on a fresh model in this warm process: ``epochs`` epochs with an
    evaluation after each, which ``Trainer`` counts into the time of the training. The evaluation's figures are those of
    the last one; the training's loss, unless it reports, is that of rank 0's samples.
    """
    work_ = Work(mesh=mesh, **work)
    work_.whole("evaluation", eval_samples, work_.batch_of_all)
    step, stop = _training(work_, train_samples)

    def figures() -> Mapping[str, float]:
        stop()
        model, (train_data, eval_data) = work_.build(train_samples, eval_samples)
        trainer = work_.trainer(
            model,
            train_dataset=train_data,
            eval_dataset=eval_data,
            num_train_epochs=epochs,
            eval_strategy="epoch",
        )
        logged = {**trainer.train().metrics}
        for entry in trainer.state.log_history:
            logged.update({name: value for name, value in entry.items() if name.startswith("eval_")})
        return {figure: float(logged[name]) for figure, name in LOGGED.items()}

    return Step(**{**vars(step), "figures": figures})


def _training(work: Work, samples: int) -> tuple[Step, Callable[[], None]]:
    """The step, and what ends the training for good."""
    samples_per_step = work.batch_of_all * work.accumulation
    work.whole("training", samples, samples_per_step)
    model, (data,) = work.build(samples)
    trainer = work.trainer(model, train_dataset=data, max_steps=ENDLESS)
    turns = Turns(trainer.train, work.device)
    trainer.add_callback(_Pauses(turns.pause))

    def run() -> Tensor:
        turns.step()
        return trainer.step_loss()

    step = Step(
        run=run,
        samples=samples_per_step,
        tokens=samples_per_step * work.sequence,
        flops=work.flops(passes=work.accumulation),
        counts_flops=work.counts_flops,
        dtype=work.dtype,
        devices=work.devices,
        parameters=model.parameters,
        replicated=True,
    )
    return step, turns.stop


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained and how.

    Each step takes ``accumulation`` times ``batch`` samples of ``sequence`` tokens for every rank, or for every one of
    the ``devices`` of a single rank (``nn.DataParallel``). ``Trainer`` deals batches to ranks in turn, so that the
    samples of a step depend on their total only: one rank that accumulates more trains on the same ones. With
    ``checkpointing`` a layer keeps its input alone, and backward computes the rest again. ``report_to`` is one of
    ``Trainer``'s reporters; what it logs goes to ``runs/``.
    """

    mesh: DeviceMesh
    model: str
    precision: str
    sequence: int
    batch: int
    accumulation: int = 1
    devices: int = 1
    checkpointing: bool = False
    report_to: str = "none"

    def __post_init__(self) -> None:
        if self.devices > 1 and self.mesh.size() > 1:
            raise ValueError(f"nn.DataParallel is one rank with several devices, not {self.mesh.size()} ranks")
        if self.devices > 1 and self.devices > torch.cuda.device_count():
            raise ValueError(f"nn.DataParallel over {self.devices} GPUs, and {torch.cuda.device_count()} are here")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown to Trainer; known: {', '.join(PRECISIONS)}")
        if self.precision == "fp16" and self.device.type == "cpu":
            raise ValueError("Trainer has no fp16 on a CPU: take bf16")

    @property
    def device(self) -> torch.device:
        return torch.empty(0, device=self.mesh.device_type).device  # with its index

    @property
    def batch_of_all(self) -> int:
        """Samples of one forward pass on all devices."""
        return self.batch * self.devices * self.mesh.size()

    @property
    def dtype(self) -> str:
        """Of the matrix products. The autocast around a model does not reach its copies in ``nn.DataParallel``."""
        return "fp32" if self.devices > 1 and self.precision in ("bf16", "fp16") else self.precision

    @property
    def counts_flops(self) -> bool:
        """The counter sees what checkpointing computes again, and nothing of ``nn.DataParallel``'s threads."""
        return not self.checkpointing and self.devices == 1

    def flops(self, *, passes: int) -> float:
        """Of a training step with so many forward and backward passes on each device, by formula."""
        module = find_model(self.model).build("meta", sequence=self.sequence)
        devices = self.devices * self.mesh.size()
        return module.flops(samples=passes * self.batch_of_all, passes=passes * devices)

    def whole(self, what: str, samples: int, samples_per_step: int) -> None:
        """Raises ``ValueError`` unless every step has as many samples as any other."""
        if samples % samples_per_step:
            raise ValueError(f"{what} with {samples} samples is no whole number of steps of {samples_per_step}")

    def build(self, *sizes: int) -> tuple[nn.Module, list[Samples]]:
        """The model, and data sets of ``sizes`` samples that have none in common; the same on every rank."""
        module = find_model(self.model).build(self.device, sequence=self.sequence)
        if not isinstance(module, Deberta):
            raise ValueError(f"Trainer trains a masked language model here, and {self.model!r} is none")
        # Trainer divides the loss by the number of accumulated batches unless the model takes ``num_items_in_batch``.
        # This one takes it, with any other keyword, and ignores it: the loss would come out too large by that number
        # and by that of the ranks.
        module.deberta.accepts_loss_kwargs = False
        tokens = module.draw(math.ceil(sum(sizes) / POOL))[0].flatten(0, 1)[: sum(sizes)]
        return module.deberta, [Samples(part) for part in torch.split(tokens, list(sizes))]

    def trainer(self, model: nn.Module, **options: Any) -> SteppedTrainer:
        """``options``: ``Trainer``'s data sets, and arguments of the training that are not the same for all."""
        # TF32 is a switch of the whole process; Trainer turns on the other formats.
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            # The threads that this rank has; where the variable is missing, accelerate decides on its own.
            os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        reports = self.report_to != "none"
        datasets = {name: options.pop(name) for name in ("train_dataset", "eval_dataset") if name in options}
        # Told that it was launched, Trainer puts a lone rank into DDP too, and accelerate's no_sync, which does nothing
        # for one process, lets DDP go over the gradients after each accumulated batch.
        with _no_launcher() if self.mesh.size() == 1 else nullcontext():
            arguments = TrainingArguments(
                # Made even where nothing is put there: then one that exists.
                output_dir=f"runs/{self.model}-{self.precision}-{self.batch_of_all}"
                if reports
                else tempfile.gettempdir(),
                per_device_train_batch_size=self.batch,
                per_device_eval_batch_size=self.batch,
                gradient_accumulation_steps=self.accumulation,
                learning_rate=find_model(self.model).learning_rate,
                gradient_checkpointing=self.checkpointing,
                gradient_checkpointing_kwargs={"use_reentrant": False},
                fp16=self.precision == "fp16",
                bf16=self.precision == "bf16",
                seed=SEED,
                use_cpu=on_cpu,
                ddp_backend="gloo" if on_cpu else None,
                ddp_find_unused_parameters=False,
                ddp_broadcast_buffers=False,
                dataloader_pin_memory=not on_cpu,
                accelerator_config={"non_blocking": not on_cpu},
                remove_unused_columns=False,
                report_to=self.report_to,
                logging_strategy="steps" if reports else "no",
                logging_steps=LOGGING_STEPS,
                # It would read every loss, and so wait for the device in every forward pass.
                logging_nan_inf_filter=False,
                save_strategy="no",
                disable_tqdm=True,
                **options,
            )
            if self.mesh.size() == 1:
                arguments._n_gpu = self.devices  # all that are visible, if left alone
            trainer = SteppedTrainer(model, arguments, data_collator=default_data_collator, **datasets)
        if self.precision == "fp16":
            begin_as_elsewhere(trainer.accelerator.scaler)
        return trainer


def begin_as_elsewhere(scaler: torch.amp.GradScaler) -> None:
    """Give ``scaler`` the loss scale that the rest of the suite begins with: ``Trainer`` has no argument for it.

    A reference accumulates more, so its losses are divided by more: at torch's own scale gradients overflow in one of
    the two only. Call it before the first loss is scaled.
    """
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**LOSS_SCALE_POWER})


SEED = 42
"""Of the order of the samples."""


class SteppedTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` that keeps the losses of a step on their device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._losses: list[Tensor] = []

    def step_loss(self) -> Tensor:
        """Loss since the last call: a detached scalar on the device. ``Trainer`` has divided it by the number of
        accumulated batches."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum()

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        self._losses.append(loss)
        return loss

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Tensor | None, Any, Any]:
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        self._losses.append(loss)
        return loss, logits, labels

    def _wrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        wrapped: nn.Module = super()._wrap_model(model, *args, **kwargs)
        if isinstance(wrapped, nn.DataParallel) and wrapped is not model:
            return nn.DataParallel(model, device_ids=list(range(self.args.n_gpu)))  # Trainer's has all that are visible
        return wrapped


class Samples(Dataset[dict[str, Tensor]]):
    """Masked samples of ``tokens`` (int64, samples × sequence)."""

    def __init__(self, tokens: Tensor) -> None:
        self.inputs, self.labels = mask(tokens)
        # As from a tokenizer. Without it the model looks for padding, and waits for the device.
        self.attention = torch.ones_like(tokens)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.inputs[index],
            "attention_mask": self.attention[index],
            "labels": self.labels[index],
        }


class _Pauses(TrainerCallback):  # type: ignore[misc]
    """Hands the turn over after each optimisation or prediction step."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.pause = pause

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.pause()

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        self.pause()


@contextmanager
def _no_launcher() -> Iterator[None]:
    """Let ``Trainer`` find what it finds in a script that ``python`` started: there it splits batches over GPUs by
    itself."""
    hidden = {name: os.environ.pop(name) for name in LAUNCHER if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
