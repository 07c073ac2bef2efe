"""Tensor, pipeline and data parallelism from PyTorch itself: DTensor, torch.distributed.pipelining, DDP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from bench_tests.engines import SCHEDULES, axis, share_of
from bench_tests.models.gpt import GPT
from bench_tests.models.loss import next_token_loss
from bench_tests.strategies import DDP_OPTIONS
from bench_tests.training.recipe import Recipe, Trainee

SCHEDULE_CLASSES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "interleaved-zb": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
}


class Stage(nn.Module):
    """Consecutive blocks of a GPT. The ``first`` stage also has the embeddings, the ``last`` one the head and the loss.

    The last stage returns a loss instead of logits, because schedules keep the outputs of all micro-batches until the
    step ends.
    """

    def __init__(
        self, model: GPT, index: int, stages: int, autocast: Callable[[], AbstractContextManager[object]]
    ) -> None:
        super().__init__()
        self.index, self.first, self.last = index, index == 0, index == stages - 1
        self.autocast = autocast
        transformer = model.gpt2.transformer
        if self.first:
            self.wte, self.wpe = transformer.wte, transformer.wpe
        self.blocks = nn.ModuleList(model.blocks[share_of(len(model.blocks), index, stages)])
        if self.last:
            self.ln_f, self.head = transformer.ln_f, model.gpt2.lm_head

    def forward(self, received: Tensor, tokens: Tensor) -> Tensor:
        """The input of the next stage, or the mean loss on the last stage.

        The input of the next stage is fp32 of shape samples × sequence × hidden; under sequence parallelism it holds a
        part of the sequence. The loss is fp32 with one element. ``tokens`` are int64, samples × sequence. The first
        stage ignores ``received``.
        """
        with self.autocast():
            hidden = received
            if self.first:
                positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
                hidden = self.wte(tokens) + self.wpe(positions)
            for block in self.blocks:
                hidden = block(hidden)
            if not self.last:
                return hidden
            logits = self.head(self.ln_f(hidden))
            if not isinstance(logits, DTensor):
                return next_token_loss(logits, tokens).unsqueeze(0)
        # For scores that are split over the vocabulary, torch has a log-softmax only in fp32.
        return local(next_token_loss(logits, tokens)).unsqueeze(0)


def torch_native(
    model: GPT,
    mesh: DeviceMesh,
    recipe: Recipe,
    *,
    micro_batches: int,
    micro_batch: int,
    schedule: str | None,
    sequence_parallel: bool = False,
) -> Trainee:
    """Train ``model`` with PyTorch's own parallelism; see :mod:`bench_tests.engines` for the arguments.

    If ``dp`` is the only axis, DDP averages gradients during backward. On all other meshes this engine sums gradients
    after backward. There, DDP around a pipeline stage fails under some schedules ("rebuilt parameter indices size is
    not same"), and FSDP2 would shard what the published figures replicate.
    """
    pp, dp, tp = axis(mesh, "pp"), axis(mesh, "dp"), axis(mesh, "tp")
    order = None if schedule is None else SCHEDULES[schedule]
    ends = None
    if pp is None or order is None:
        stages = [Stage(model, 0, 1, recipe.autocast)]
    else:
        total = pp.size() * order.chunks
        stages = [Stage(model, index, total, recipe.autocast) for index in order.stages(pp.get_local_rank(), pp.size())]
        ends = None if order.mirrored else join_ends(mesh)
    if tp is not None:
        for stage in stages:
            split_layers(stage, tp, sequence_parallel=sequence_parallel)
    if stages[0].first and stages[-1].last:
        stages[-1].head.weight = stages[0].wte.weight  # split_layers made a new parameter of each copy

    overlapped = dp is not None and pp is None and tp is None
    update = Update(stages, recipe, tp=tp, dp=None if overlapped else dp, ends=ends)
    parts = micro_batches * (1 if dp is None or overlapped else dp.size())
    losses: list[Tensor] = []

    def share(loss: Tensor, _: Tensor | None = None) -> Tensor:
        """The share of one micro-batch in the step's loss. With these shares the gradients only need to be summed."""
        losses.append(loss.detach())
        return update.scaler.scale(loss / parts)

    if pp is None or schedule is None:
        passes = accumulation(stages[0], dp if overlapped else None, micro_batches, share)
    else:
        sequence = model.tokens_per_sample
        length = sequence // tp.size() if tp is not None and sequence_parallel else sequence
        between = torch.empty(micro_batch, length, model.config.n_embd, device="meta", requires_grad=True)
        tokens = torch.empty(micro_batch, sequence, dtype=torch.int64, device="meta")
        passes = pipeline(stages, pp, recipe.device, schedule, micro_batches, share, between, tokens)

    def run(tokens: Tensor) -> Tensor | None:
        losses.clear()
        # The outer autocast casts nothing. It keeps the cached 16-bit weights from one micro-batch to the next.
        with torch.autocast(recipe.device.type, enabled=False), nullcontext() if tp is None else loss_parallel():
            passes(tokens)
        update()
        return torch.cat(losses).mean() if losses else None

    # The FLOP counter counts a product of DTensors as the whole product on every rank. Its hooks fail if a schedule
    # computes the gradients of weights separately.
    countable = tp is None and not (order is not None and order.weights_apart)
    return Trainee(run=run, parameters=lambda: update.shards, replicated=True, counts_flops=countable)


def accumulation(
    stage: Stage, dp: DeviceMesh | None, micro_batches: int, share: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], None]:
    """Forward and backward passes of the whole model, one micro-batch after another. With ``dp`` the model runs under
    DDP."""
    module: Any = stage
    if dp is not None:
        # With a static graph DDP reduces in every pass, so accumulation needs a dynamic graph.
        options: dict[str, Any] = {**DDP_OPTIONS, "static_graph": micro_batches == 1}
        module = DistributedDataParallel(stage, process_group=dp.get_group(), **options)

    def passes(tokens: Tensor) -> None:
        parts = tokens.chunk(micro_batches)
        for index, part in enumerate(parts, 1):
            unfinished = isinstance(module, DistributedDataParallel) and index < len(parts)
            with module.no_sync() if unfinished else nullcontext():
                torch.autograd.backward(share(module(part, part)))

    return passes


def pipeline(
    stages: Sequence[Stage],
    pp: DeviceMesh,
    device: torch.device,
    schedule: str,
    micro_batches: int,
    share: Callable[..., Tensor],
    between: Tensor,
    tokens: Tensor,
) -> Callable[[Tensor], None]:
    """Forward and backward passes of this rank's ``stages``, in the order of a schedule of
    torch.distributed.pipelining.

    ``between`` is a sample of what one stage sends to the next, and ``tokens`` of what the first stage takes. With
    these samples the schedule does not need to run the model to find out shapes.
    """
    total = pp.size() * len(stages)
    wrapped = [
        pipelining.PipelineStage(
            stage,
            stage.index,
            total,
            device,
            input_args=tokens if stage.first else between,
            output_args=between.new_empty(1, requires_grad=True) if stage.last else between,
            group=pp.get_group(),
        )
        for stage in stages
    ]
    # The loss already scales the gradients. Scaling here would launch one small kernel a parameter.
    mine = wrapped if SCHEDULES[schedule].chunks > 1 else wrapped[0]
    run = SCHEDULE_CLASSES[schedule](mine, micro_batches, loss_fn=share, scale_grads=False)

    def passes(tokens: Tensor) -> None:
        received = (tokens,) if stages[0].first else ()
        run.step(*received, tokens=tokens, target=tokens if stages[-1].last else None)

    return passes


def split_layers(stage: Stage, tp: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split the layers as in Megatron-LM (arXiv 1909.08053).

    The first product of attention and of the feed-forward layer is split by columns, and the second product by rows.
    The embedding and the head are split by vocabulary. With ``sequence_parallel`` (arXiv 2205.05198) the norms and
    residuals between them are split along the sequence.
    """
    stream = Shard(1) if sequence_parallel else Replicate()
    by_vocabulary = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    plan: dict[str, ParallelStyle] = {}
    if stage.first:
        plan["wte"] = by_vocabulary
        if sequence_parallel:
            plan["wpe"] = by_vocabulary
    for index, block in enumerate(stage.blocks):
        attention: Any = block.attn
        mlp: Any = block.mlp
        attention.c_attn = linear(attention.c_attn, groups=3, ranks=tp.size())
        attention.c_proj, mlp.c_fc, mlp.c_proj = linear(attention.c_proj), linear(mlp.c_fc), linear(mlp.c_proj)
        attention.split_size //= tp.size()
        for layer in ("attn.c_attn", "mlp.c_fc"):
            plan[f"blocks.{index}.{layer}"] = ColwiseParallel(input_layouts=stream)
        for layer in ("attn.c_proj", "mlp.c_proj"):
            plan[f"blocks.{index}.{layer}"] = RowwiseParallel(output_layouts=stream)
        for layer in ("ln_1", "ln_2") if sequence_parallel else ():
            plan[f"blocks.{index}.{layer}"] = SequenceParallel(use_local_output=True)
    if stage.last:
        plan["head"] = ColwiseParallel(input_layouts=stream, use_local_output=False)
        if sequence_parallel:
            plan["ln_f"] = SequenceParallel(use_local_output=True)
    parallelize_module(stage, tp, plan)


def linear(layer: Any, *, groups: int = 1, ranks: int = 1) -> nn.Linear:
    """A linear layer equal to GPT-2's ``Conv1D``, which no parallel style of torch accepts.

    The outputs are ``groups`` equal groups side by side (query, key and value). The new layer orders them so that each
    of ``ranks`` equal parts holds its share of every group.
    """
    inputs, outputs = layer.weight.shape
    order = torch.arange(outputs, device=layer.weight.device).view(groups, ranks, -1).transpose(0, 1).flatten()
    converted = nn.Linear(inputs, outputs, device="meta")
    converted.weight = nn.Parameter(layer.weight.detach().t()[order].contiguous())
    converted.bias = nn.Parameter(layer.bias.detach()[order])
    return converted


class Update:
    """Sums gradients over the ranks that hold parts of them, and takes the optimizer's step.

    ``dp`` is the mesh of ranks that trained on other samples; ``None`` if DDP already sums over them. ``ends`` is the
    group of the two ranks that each hold a copy of the tied weight of embedding and head; ``None`` if there is one copy
    or this rank holds none.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        recipe: Recipe,
        *,
        tp: DeviceMesh | None,
        dp: DeviceMesh | None,
        ends: ProcessGroup | None,
    ) -> None:
        self.parameters = list(nn.ModuleList(stages).parameters())
        # Local tensors, because the fused optimizer takes all of them in one call and refuses a mix with DTensors.
        self.shards = [nn.Parameter(local(parameter.detach())) for parameter in self.parameters]
        self.optimizer, self.scaler = recipe.adamw(self.shards), recipe.sharded_scaler(everyone())
        # A rank without a loss would otherwise never initialise the scaler.
        self.scaler.scale(torch.ones((), device=recipe.device))
        self.tp, self.dp, self.ends = tp, dp, ends
        tied = stages[0].wte.weight if stages[0].first else stages[-1].head.weight if stages[-1].last else None
        self.tied = [shard for shard, one in zip(self.shards, self.parameters, strict=True) if one is tied]

    @torch.no_grad()
    def __call__(self) -> None:
        gradients, partial = [], []
        for shard, parameter in zip(self.shards, self.parameters, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            # Under sequence parallelism a rank's gradient covers only its part of the sequence.
            summed = True
            if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
                summed = not gradient.placements[0].is_partial()
                if not parameter.placements[0].is_replicate():
                    gradient, summed = gradient.redistribute(placements=parameter.placements), True
            shard.grad, parameter.grad = local(gradient), None
            gradients.append(shard.grad)
            if not summed:
                partial.append(shard.grad)
        if self.tp is not None:
            sum_over(self.tp.get_group(), partial)
        if self.dp is not None:
            sum_over(self.dp.get_group(), gradients)
        if self.ends is not None:  # last, so that both copies end with the same bits
            sum_over(self.ends, [shard.grad for shard in self.tied if shard.grad is not None])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def sum_over(group: ProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Sum each tensor in place over the group's ranks, with one launch for all tensors."""
    if tensors:
        with dist.distributed_c10d._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)


def join_ends(mesh: DeviceMesh) -> ProcessGroup | None:
    """The group of the first and the last rank of this rank's pipeline; ``None`` on a rank between them.

    Every rank of ``mesh`` must call this function, because creating groups is collective.
    """
    names = mesh.mesh_dim_names or ()
    pairs = mesh.mesh.movedim(names.index("pp"), 0)[[0, -1]].flatten(1).t().tolist()
    group: ProcessGroup | None
    group, _ = dist.new_subgroups_by_enumeration(pairs)  # type: ignore[no-untyped-call]
    return group


def everyone() -> ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
