"""Tensor, pipeline and data parallelism with Megatron-Core: its GPT, its schedules, its DDP and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import gelu, pad, scaled_dot_product_attention

from bench_tests.engines import SCHEDULES, axis
from bench_tests.models.gpt import GPT
from bench_tests.training.recipe import BETAS, LOSS_SCALE_POWER, WEIGHT_DECAY, Recipe, Trainee


def megatron(
    model: GPT, mesh: DeviceMesh, recipe: Recipe, *, micro_batches: int, micro_batch: int, schedule: str | None
) -> Trainee:
    """Train ``model`` as Megatron trains: parameters in 16 bits, gradients and the optimizer's copy of the parameters
    in fp32.

    Without Transformer Engine its fused attention is missing, and Megatron's own attention keeps every matrix of
    scores. The layers therefore use torch's fused attention. Sequence parallelism is missing, because it needs the
    norms of Apex or Transformer Engine.
    """
    if recipe.device.type == "cpu":
        from bench_tests.engines import megatron_on_cpu

        megatron_on_cpu.enable()
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module

    tp, pp = ((1 if one is None else one.size()) for one in (axis(mesh, "tp"), axis(mesh, "pp")))
    chunks = SCHEDULES[schedule].chunks if schedule is not None else 1
    # Megatron numbers ranks like our mesh: neighbours share tp, then dp, then pp.
    parallel_state.initialize_model_parallel(tp, pp, chunks if chunks > 1 else None)

    number_format = {"bf16": recipe.precision == "bf16", "fp16": recipe.precision == "fp16"}
    dimensions = model.config
    config = TransformerConfig(
        num_layers=dimensions.n_layer,
        hidden_size=dimensions.n_embd,
        num_attention_heads=dimensions.n_head,
        layernorm_epsilon=dimensions.layer_norm_epsilon,
        activation_func=partial(gelu, approximate="tanh"),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        params_dtype=recipe.dtype,
        pipeline_dtype=recipe.dtype,
        perform_initialization=False,
        use_cpu_initialization=recipe.device.type == "cpu",
        # These three options need kernels of Apex or Transformer Engine.
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        # With two ranks each rank is both the previous and the next rank of the other. Batched sends would then reach
        # the wrong chunk.
        overlap_p2p_comm=chunks > 1,
        batch_p2p_comm=chunks == 1,
        batch_p2p_sync=False,  # works around a fault of old torch versions, and makes the host wait
        **number_format,
    )
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = FusedAttention
    ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True)

    parts = []
    for chunk in range(chunks):
        virtual = {"ignore_virtual": False, "vp_stage": chunk} if chunks > 1 else {}
        part = GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=dimensions.vocab_size,
            max_sequence_length=dimensions.n_positions,
            pre_process=parallel_state.is_pipeline_first_stage(**virtual),
            post_process=parallel_state.is_pipeline_last_stage(**virtual),
            share_embeddings_and_output_weights=True,
            vp_stage=chunk if chunks > 1 else None,
        ).to(recipe.device)
        copy_weights(model, part, rank=parallel_state.get_tensor_model_parallel_rank())
        wrapped = Float16Module(config, part) if recipe.mixed else part
        parts.append(DistributedDataParallel(config, ddp_config, wrapped, disable_bucketing=chunk > 0))
    (optimizer,) = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=recipe.learning_rate,
            clip_grad=0.0,
            params_dtype=recipe.dtype,
            initial_loss_scale=2.0**LOSS_SCALE_POWER,  # it then falls like the scale of torch.amp
            hysteresis=1,
            **number_format,
        ),
        parts,
    ).chained_optimizers  # The chain would compute the norm of all gradients, and the host would wait for it.
    for group in optimizer.param_groups:
        group.update(lr=recipe.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = [part.no_sync for part in parts] if chunks > 1 else parts[0].no_sync
    forward_backward = get_forward_backward_func()

    def forward(batches: Iterator[Tensor], part: nn.Module) -> tuple[Tensor, Any]:
        tokens = next(batches)
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        # The end of the model returns one loss a token. The last token of a sample has no next token to predict.
        return part(tokens, positions, None, labels=pad(tokens[:, 1:], (0, 1))), loss_of

    def run(tokens: Tensor) -> Tensor | None:
        for part in parts:
            part.zero_grad_buffer()
        optimizer.zero_grad()
        data = [iter(tokens.chunk(micro_batches)) for _ in parts]
        losses = forward_backward(
            forward_step_func=forward,
            data_iterator=data if chunks > 1 else data[0],
            model=parts if chunks > 1 else parts[0],
            num_microbatches=micro_batches,
            seq_length=tokens.shape[1],
            micro_batch_size=micro_batch,
            forward_only=False,
        )
        optimizer.step()
        return torch.stack(losses).mean() if losses else None

    def parameters() -> list[Tensor]:
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    return Trainee(run=run, parameters=parameters, replicated=True)


def loss_of(per_token: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss over the predicted tokens, twice: for backward, and detached for the report."""
    loss = per_token[:, :-1].float().mean()
    return loss, loss.detach().clone()


class FusedAttention(nn.Module):
    """Causal attention for Megatron's layers. It ignores what this suite does not use: masks, biases and packed
    samples."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any) -> Tensor:
        """Attention from sequence × samples × heads × head dim to sequence × samples × hidden."""
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.permute(2, 0, 1, 3).flatten(2)


LAYER = {
    "input_layernorm": "ln_1",
    "self_attention.linear_qkv": "attn.c_attn",
    "self_attention.linear_proj": "attn.c_proj",
    "pre_mlp_layernorm": "ln_2",
    "mlp.linear_fc1": "mlp.c_fc",
    "mlp.linear_fc2": "mlp.c_proj",
}
"""Megatron's name of a layer's module -> GPT-2's name."""

REST = {
    "embedding.word_embeddings.weight": "wte.weight",
    "embedding.position_embeddings.weight": "wpe.weight",
    "decoder.final_layernorm.weight": "ln_f.weight",
    "decoder.final_layernorm.bias": "ln_f.bias",
    "output_layer.weight": "wte.weight",
}


@torch.no_grad()
def copy_weights(model: GPT, part: nn.Module, *, rank: int) -> None:
    """Copy this rank's share of the whole model's weights into ``part``, a ``GPTModel``. ``rank`` is the rank on the
    tensor axis."""
    transformer = model.gpt2.transformer
    for name, parameter in part.named_parameters():
        if name in REST:
            whole = transformer.get_parameter(REST[name])
        else:
            _, _, index, inner = name.split(".", 3)
            layer, _, kind = inner.rpartition(".")
            megatron_layer: Any = part.get_submodule(f"decoder.layers.{index}")
            whole = transformer.h[megatron_layer.layer_number - 1].get_parameter(f"{LAYER[layer]}.{kind}")
            if whole.dim() == 2:
                whole = whole.t()  # GPT-2 stores inputs × outputs
            # GPT-2 stores all queries, all keys, all values. Megatron stores query, key and value head by head.
            if layer.endswith("linear_qkv"):
                heads = model.config.n_head
                whole = whole.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
        for dim, size in enumerate(parameter.shape):
            if size != whole.shape[dim]:
                whole = whole.narrow(dim, rank * size, size)
        parameter.copy_(whole)
