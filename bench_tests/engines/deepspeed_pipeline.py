"""Pipeline and data parallelism with DeepSpeed's ``PipelineModule``, which has no tensor parallelism of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import embedding, linear

from bench_tests.engines import axis, share_of
from bench_tests.models.gpt import GPT
from bench_tests.models.loss import next_token_loss
from bench_tests.training import deepspeed_engine
from bench_tests.training.recipe import Recipe, Trainee


def deepspeed_pipeline(
    model: GPT, mesh: DeviceMesh, recipe: Recipe, *, micro_batches: int, micro_batch: int, schedule: str | None
) -> Trainee:
    """Train ``model`` with DeepSpeed's pipeline; see :mod:`bench_tests.engines` for the arguments.

    ``schedule`` is always 1F1B, the only schedule of DeepSpeed. DeepSpeed numbers ranks like our mesh: neighbours share
    dp, then pp.
    """
    deepspeed_engine.load(recipe.device)
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    pp = axis(mesh, "pp")
    stages = 1 if pp is None else pp.size()
    share_of(len(model.blocks), 0, stages)  # raises where DeepSpeed would split unequally
    transformer = model.gpt2.transformer
    layers: dict[str, Any] = {"words": transformer.wte, "positions": transformer.wpe, "norm": transformer.ln_f}
    layers |= model.blocks.named_children()
    pipeline = PipelineModule(
        layers=[
            TiedLayerSpec("words", Words, layers),
            LayerSpec(Positions, layers),
            *(LayerSpec(Block, layers, str(index)) for index in range(len(model.blocks))),
            LayerSpec(Norm, layers),
            TiedLayerSpec("words", Words, layers, forward_fn=head),
        ],
        num_stages=stages,
        loss_fn=next_token_loss,
        partition_method="type:Block",
    )
    # The layer specifications outlive this function and would keep the layers of all other stages in memory.
    layers.clear()

    engine = deepspeed_engine.initialize(
        pipeline,
        recipe,
        micro_batches=micro_batches,
        # In 16-bit formats DeepSpeed accumulates gradients in fp32 only if it also shards the optimizer states over dp.
        zero={"stage": 1 if recipe.mixed else 0},
        train_micro_batch_size_per_gpu=micro_batch,
        data_types={"grad_accum_dtype": None if recipe.precision == "fp16" else "fp32"},
        pipeline={"pipe_partitioned": False, "grad_partitioned": False},
    )

    def run(tokens: Tensor) -> Tensor:
        loss: Tensor = engine.train_batch((part, part) for part in tokens.chunk(micro_batches))
        return loss.detach()

    return Trainee(run=run, parameters=pipeline.parameters, replicated=True)


class Words(nn.Module):
    """The word embedding. The head of the model uses the same weight; see :func:`head`."""

    def __init__(self, layers: dict[str, Any]) -> None:
        super().__init__()
        self.weight: nn.Parameter = layers["words"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self.weight)


def head(words: Words, hidden: Tensor) -> Tensor:
    logits: Tensor = linear(hidden, words.weight)
    return logits


class Positions(nn.Module):
    def __init__(self, layers: dict[str, Any]) -> None:
        super().__init__()
        self.weight: nn.Parameter = layers["positions"].weight

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.weight[: hidden.shape[1]]


class Block(nn.Module):
    def __init__(self, layers: dict[str, Any], index: str) -> None:
        super().__init__()
        self.block = layers[index]

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.block(hidden)
        return result


class Norm(nn.Module):
    def __init__(self, layers: dict[str, Any]) -> None:
        super().__init__()
        self.norm = layers["norm"]

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.norm(hidden)
        return result
