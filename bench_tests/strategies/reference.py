"""Training in one process. All other strategies are compared with it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bench_tests.models.trainable import Trainable
from bench_tests.training.recipe import Recipe, Trainee


def reference(
    model: Trainable, dp: DeviceMesh, recipe: Recipe, *, micro_batches: int, rounds_weights: bool = False
) -> Trainee:
    """Train on the samples in ``micro_batches`` equal parts, one after another, with the memory of a single part.

    Each part's loss goes backward undivided, and the summed gradients are divided at the end, as if each part belonged
    to a rank. A divided loss has smaller gradients, which lose more in fp16. ``tts_angular`` shows the difference,
    because cuDNN runs its LSTMs in fp16. With the gradients of the LSTMs rounded to fp16 on a CPU, at 4,096 samples a
    part, the error was 0.5 % on a rank, and 4 % with the loss of four parts divided.

    With ``rounds_weights`` a mixed precision trains as DeepSpeed and Megatron-Core do. The weights become 16-bit
    numbers first. The optimizer then updates an fp32 copy of these rounded weights, and each step rounds the copy into
    the model. Such a training differs from autocast's: a weight stays as it is until its updates add up to half the
    distance between two 16-bit numbers.
    """
    rounds = rounds_weights and recipe.mixed
    if rounds:
        model.to(recipe.dtype)
    weights: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
    # Detached tensors share memory with the model, and ``float`` copies only what is not fp32 already.
    masters = [weight.detach().float().requires_grad_() for weight in weights] if rounds else weights
    optimizer, scaler = recipe.adamw(masters), recipe.scaler()
    autocast = torch.autocast(recipe.device.type, enabled=False) if rounds else recipe.autocast()

    def collect() -> None:
        """Add a part's gradients to those of the masters, in fp32."""
        for weight, master in zip(weights, masters, strict=True):
            if weight.grad is not None:
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def run(*batch: Tensor) -> Tensor:
        total = batch[0].new_zeros((), dtype=torch.float32)
        for part in zip(*(tensor.chunk(micro_batches) for tensor in batch), strict=True):
            with autocast:
                loss = model(*part)
            torch.autograd.backward(scaler.scale(loss))
            if rounds:
                collect()
            total += loss.detach()
        for master in masters:
            if master.grad is not None:
                master.grad /= micro_batches
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if rounds:
            with torch.no_grad():
                torch._foreach_copy_(weights, masters)
        return total / micro_batches

    return Trainee(run=run, parameters=model.parameters, replicated=False)
