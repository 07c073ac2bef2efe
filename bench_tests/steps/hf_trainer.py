"""Step builders around transformers' ``Trainer``. They run its real loops, one step at a time.

The measured step includes everything that ``Trainer`` does besides the model's work: loading data, clipping,
bookkeeping, its own waits for the device. ``Trainer`` has the set-up of a careful user: it logs and saves nothing
unless asked to.
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
"""Optimisation steps that a training announces if its caller decides when it ends."""

LOGGING_STEPS = 10
"""Steps between two reports of the loss, if there is a reporter."""

LAUNCHER = ("LOCAL_RANK", "WORLD_SIZE")
"""Environment variables that tell ``Trainer`` that a launcher started this process as a rank."""

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
"""Name of a whole run's figure -> the name that ``Trainer`` logs it under."""


def trainer_train(mesh: DeviceMesh, *, samples: int, **work: Any) -> Step:
    """One optimisation step of ``Trainer.train()`` over a data set of ``samples`` samples, epoch after epoch.

    ``work`` holds fields of :class:`Work`. Raises ``ValueError`` if the parameters do not fit together.
    """
    step, _ = _training(Work(mesh=mesh, **work), samples)
    return step


def trainer_eval(mesh: DeviceMesh, *, samples: int, **work: Any) -> Step:
    """One prediction step of ``Trainer.evaluate()``, which runs again and again over ``samples`` samples.

    Between two evaluations a step also contains the end of one and the start of the next. ``work`` holds fields of
    :class:`Work`. Raises ``ValueError`` if the parameters do not fit together.
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
        flops=work_.flops(passes=1) / 3,  # forward alone: backward would be twice as much
        counts_flops=work_.counts_flops,
        dtype=work_.dtype,
        devices=work_.devices,
        parameters=lambda: [loss],
        trains=False,
    )


def trainer_run(mesh: DeviceMesh, *, train_samples: int, eval_samples: int, epochs: int, **work: Any) -> Step:
    """The step of :func:`trainer_train`, with figures that ``Trainer`` logs for a whole run afterwards.

    The run is one call of ``Trainer.train()`` with a fresh model in this warm process. It has ``epochs`` epochs with an
    evaluation after each. ``Trainer`` counts the evaluations into the time of the training. The evaluation's figures
    come from the last evaluation. The training's loss covers the samples of rank 0 only, unless the training reports.
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
    """The step of a training, and a function that ends the training."""
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
    """The model, its data and how ``Trainer`` trains it.

    A step takes ``accumulation`` times ``batch`` samples of ``sequence`` tokens on every rank, or on each of the
    ``devices`` of a single rank (``nn.DataParallel``). ``Trainer`` gives batches to ranks in turn, so the samples of a
    step depend only on their total number. One rank that accumulates more therefore trains on the same samples.
    ``checkpointing`` turns on activation checkpointing: a layer keeps only its input, and backward computes the rest
    again. ``report_to`` is a reporter of ``Trainer``; its logs go to ``runs/``. Raises ``ValueError`` if the fields do
    not fit together.
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
            raise ValueError(f"nn.DataParallel needs one rank with several devices, not {self.mesh.size()} ranks")
        if self.devices > 1 and self.devices > torch.cuda.device_count():
            raise ValueError(f"nn.DataParallel needs {self.devices} GPUs, and torch sees {torch.cuda.device_count()}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown to Trainer; known: {', '.join(PRECISIONS)}")
        if self.precision == "fp16" and self.device.type == "cpu":
            raise ValueError("Trainer does not support fp16 on a CPU: use bf16")

    @property
    def device(self) -> torch.device:
        return torch.empty(0, device=self.mesh.device_type).device  # the device with its index

    @property
    def batch_of_all(self) -> int:
        """Samples of one forward pass on all devices together."""
        return self.batch * self.devices * self.mesh.size()

    @property
    def dtype(self) -> str:
        """Number format of the matrix products. Autocast around a model does not reach its copies in
        ``nn.DataParallel``, so they stay fp32."""
        return "fp32" if self.devices > 1 and self.precision in ("bf16", "fp16") else self.precision

    @property
    def counts_flops(self) -> bool:
        """Whether the FLOP counter is right. It also counts what checkpointing recomputes, and it misses the threads of
        ``nn.DataParallel``."""
        return not self.checkpointing and self.devices == 1

    def flops(self, *, passes: int) -> float:
        """FLOPs, by formula, of a training step with this number of forward and backward passes on each device."""
        module = find_model(self.model).build("meta", sequence=self.sequence)
        devices = self.devices * self.mesh.size()
        return module.flops(samples=passes * self.batch_of_all, passes=passes * devices)

    def whole(self, what: str, samples: int, samples_per_step: int) -> None:
        """Raises ``ValueError`` unless all steps have the same number of samples."""
        if samples % samples_per_step:
            raise ValueError(f"{what} with {samples} samples is not a whole number of steps of {samples_per_step}")

    def build(self, *sizes: int) -> tuple[nn.Module, list[Samples]]:
        """The model, and data sets of ``sizes`` samples without common samples. Both are the same on every rank.

        Raises ``ValueError`` if the model is not one that ``Trainer`` trains here.
        """
        module = find_model(self.model).build(self.device, sequence=self.sequence)
        if not isinstance(module, Deberta):
            raise ValueError(f"Trainer trains only DeBERTa models here, and {self.model!r} is not one")
        # Trainer divides the loss by the number of accumulated batches, but not for a model that takes
        # ``num_items_in_batch``. This model accepts any keyword and ignores that one. Without this line its loss would
        # be too large by the number of accumulated batches and by the number of ranks.
        module.deberta.accepts_loss_kwargs = False
        tokens = module.draw(math.ceil(sum(sizes) / POOL))[0].flatten(0, 1)[: sum(sizes)]
        return module.deberta, [Samples(part) for part in torch.split(tokens, list(sizes))]

    def trainer(self, model: nn.Module, **options: Any) -> SteppedTrainer:
        """A ``Trainer`` for ``model``. ``options`` are ``Trainer``'s data sets, and training arguments that differ
        between step builders."""
        # TF32 is a switch of the whole process. Trainer itself turns on the other formats.
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            # The number of this rank's threads. Without the variable accelerate would choose a number.
            os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
        reports = self.report_to != "none"
        datasets = {name: options.pop(name) for name in ("train_dataset", "eval_dataset") if name in options}
        # If Trainer sees a launcher, it wraps even a lone rank in DDP. For one process accelerate's no_sync does
        # nothing, so DDP would go over the gradients after each accumulated batch.
        with _no_launcher() if self.mesh.size() == 1 else nullcontext():
            arguments = TrainingArguments(
                # Trainer creates the folder even if it writes nothing. Without a reporter an existing folder is used.
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
                # The filter would read every loss, so the host would wait for the device in every forward pass.
                logging_nan_inf_filter=False,
                save_strategy="no",
                disable_tqdm=True,
                **options,
            )
            if self.mesh.size() == 1:
                arguments._n_gpu = self.devices  # Trainer's default is all visible GPUs
            trainer = SteppedTrainer(model, arguments, data_collator=default_data_collator, **datasets)
        if self.precision == "fp16":
            begin_as_elsewhere(trainer.accelerator.scaler)
        return trainer


def begin_as_elsewhere(scaler: torch.amp.GradScaler) -> None:
    """Set ``scaler`` to the loss scale that the rest of the suite starts with. ``Trainer`` has no argument for it.

    A reference accumulates more batches, so its losses are divided by a larger number. At torch's own scale, gradients
    would overflow only in the training or only in the reference. Call this function before the first loss is scaled.
    """
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**LOSS_SCALE_POWER})


SEED = 42
"""Seed of the order of the samples."""


class SteppedTrainer(Trainer):  # type: ignore[misc]
    """A ``Trainer`` that keeps the losses of a step on the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._losses: list[Tensor] = []

    def step_loss(self) -> Tensor:
        """The loss since the last call: a detached scalar on the device. ``Trainer`` has divided it by the number of
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
            # Trainer's own wrapper takes all visible GPUs.
            return nn.DataParallel(model, device_ids=list(range(self.args.n_gpu)))
        return wrapped


class Samples(Dataset[dict[str, Tensor]]):
    """A data set of masked samples, made of ``tokens`` (int64, samples × sequence)."""

    def __init__(self, tokens: Tensor) -> None:
        self.inputs, self.labels = mask(tokens)
        # The mask that a tokenizer returns. Without it the model looks for padding, and the host waits for the device.
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
    """Calls ``pause`` after each optimisation or prediction step."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.pause = pause

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.pause()

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        self.pause()


@contextmanager
def _no_launcher() -> Iterator[None]:
    """Hide the launcher's variables. Without them ``Trainer`` behaves as in a plain ``python`` script and splits
    batches over GPUs itself."""
    hidden = {name: os.environ.pop(name) for name in LAUNCHER if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
