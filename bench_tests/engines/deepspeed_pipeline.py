"""Pipeline and data parallelism with DeepSpeed's ``PipelineModule``. It has no tensor parallelism of its own."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy, embedding, linear, pad

from bench_tests.engines import axis, share_of
from bench_tests.models.gpt import GPT
from bench_tests.strategies.recipe import Recipe, Trainee


def deepspeed_pipeline(
    model: GPT, mesh: DeviceMesh, recipe: Recipe, *, micro_batches: int, micro_batch: int, schedule: str | None
) -> Trainee:
    """``schedule`` is 1F1B, the only one there. Ranks are numbered as in our mesh: neighbours share dp, then pp."""
    if recipe.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # read at import
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    # On a CPU this extension would be compiled on first use. No other device looks for it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_init_required=False)

    pp = axis(mesh, "pp")
    stages = 1 if pp is None else pp.size()
    share_of(len(model.blocks), 0, stages)  # refuses what DeepSpeed would deal unequally
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
        loss_fn=loss_of,
        partition_method="type:Block",
    )
    layers.clear()  # the specifications, which stay, hold those of the other stages too

    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": micro_batches,
        # DeepSpeed clips at 1 unless told otherwise; nothing else here clips.
        "gradient_clipping": 0.0,
        # torch's fused AdamW: DeepSpeed's own is compiled on first use.
        "zero_allow_untested_optimizer": True,
        "data_types": {"grad_accum_dtype": None if recipe.precision == "fp16" else "fp32"},
        # Either waits for the device.
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": None,
        "bf16": {"enabled": recipe.precision == "bf16", "check_grad_overflow": False},
        # A loss scale that starts and falls as torch's GradScaler's does.
        "fp16": {"enabled": recipe.precision == "fp16", "initial_scale_power": 16, "hysteresis": 1},
        # In 16 bits it adds gradients up in fp32 only where it also shards the optimizer's states over dp.
        "zero_optimization": {"stage": 1 if recipe.mixed else 0},
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
    }
    engine, *_ = deepspeed.initialize(model=pipeline, optimizer=recipe.adamw(pipeline.parameters()), config=config)

    def run(tokens: Tensor) -> Tensor:
        loss: Tensor = engine.train_batch((part, part) for part in tokens.chunk(micro_batches))
        return loss.detach()

    return Trainee(run=run, parameters=pipeline.parameters, replicated=True)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    next_tokens = pad(tokens[:, 1:], (0, 1), value=-100)
    loss: Tensor = cross_entropy(logits.float().flatten(0, 1), next_tokens.flatten())
    return loss


class Words(nn.Module):
    """The word embedding; the head of the model is the same weight used by :func:`head`."""

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
