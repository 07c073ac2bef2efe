"""The interface between models and strategies: a module that turns a batch into its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench_tests.training.data import token_pool


class Trainable(nn.Module, ABC):
    """A model with its objective.

    Its forward pass takes tensors and returns one scalar. DDP, FSDP and DeepSpeed walk through inputs and outputs in
    every forward pass, and here they find nothing nested. The logits are freed inside.
    """

    tokens_per_sample: int | None = None
    """``None`` if a sample is not text."""

    counts_flops: bool = True
    """Whether torch's FLOP counter sees every operation of :meth:`flops`."""

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The repeated layers in order of execution. Sharding strategies gather parameters block by block."""

    @abstractmethod
    def draw(self, samples: int) -> tuple[Tensor, ...]:
        """Synthetic data for a few global batches, on the CPU, the same on every rank.

        The tensors have shape pool × ``samples`` × … and the order of :meth:`forward`'s arguments. They may be views
        that share memory: each rank copies its own samples out of them.
        """

    @abstractmethod
    def forward(self, *batch: Tensor) -> Tensor:
        """The loss of a batch: an fp32 scalar, the mean over all predictions. The tensors have shape samples × …."""

    @abstractmethod
    def flops_per_sample(self) -> float:
        """FLOPs of one training step (forward and backward) on one sample."""

    def flops_per_pass(self) -> float:
        """FLOPs that a forward pass and its backward pass do once, however many samples they take."""
        return 0.0

    def flops(self, *, samples: int, passes: int) -> float:
        """FLOPs of a training step with this number of samples and passes, on all devices together."""
        return samples * self.flops_per_sample() + passes * self.flops_per_pass()


class LanguageModel(Trainable):
    """A transformer. One sample has ``tokens_per_sample`` tokens of a ``vocabulary``."""

    tokens_per_sample: int
    vocabulary: int

    def __init__(self, *, vocabulary: int, sequence: int, positions: int) -> None:
        """Raises ``ValueError`` if ``sequence`` is longer than the model's ``positions``."""
        super().__init__()
        if sequence > positions:
            raise ValueError(f"sequence {sequence} is longer than the {positions} positions of this model")
        self.vocabulary, self.tokens_per_sample = vocabulary, sequence

    def draw(self, samples: int) -> tuple[Tensor]:
        return (token_pool(samples=samples, sequence=self.tokens_per_sample, vocabulary=self.vocabulary),)


def transformer_flops(*, layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """Floating-point operations to train on one sample of ``sequence`` tokens. A multiply-add counts as two.

    Per token, a layer has 12·hidden² weights (4 of attention, 8 of the feed-forward layer), and the head has
    hidden·vocabulary. Each weight counts one multiply-add forward and two backward. The two products of attention count
    over the full square, masked or not. Element-wise work, embedding look-ups and what a fused kernel recomputes in the
    backward pass count as nothing.
    """
    weights = layers * 12 * hidden**2 + hidden * vocabulary
    return 6.0 * weights * sequence + 12.0 * layers * hidden * sequence**2


def layer_flops(model: Trainable, *batch: Tensor) -> float:
    """Floating-point operations of the linear and convolution layers to train ``model`` on ``batch``.

    For each number of its output, a layer does ``2 · fan_in`` operations forward, as many backward for its weights, and
    as many backward for its input. It does none for its input if the input is the data, which needs no gradient. Shapes
    come from a forward pass on the meta device, so nothing is computed or changed and ``batch`` may be uninitialised
    memory. Each model adds its products outside such layers (attention, recurrence) itself.
    """
    total = 0.0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        weight = layer.weight
        assert isinstance(weight, Tensor)
        fan_in = weight[0].numel()
        total += 2.0 * fan_in * output.numel() * (3 if inputs[0].requires_grad else 2)

    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.device("meta"):
        functional_call(model, {name: _meta(tensor) for name, tensor in state.items()}, tuple(map(_meta, batch)))
    for hook in hooks:
        hook.remove()
    return total


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
