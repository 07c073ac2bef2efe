"""What every model here looks like to a strategy: a module that turns a batch into its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench_tests.training.data import token_pool


class Trainable(nn.Module, ABC):
    """A model with its objective.

    Tensors in and one scalar out: wrappers that walk through inputs and outputs on every forward (DDP, FSDP,
    DeepSpeed) find nothing to walk through, and the logits die inside.
    """

    tokens_per_sample: int | None = None
    """``None`` where a sample is not text."""

    counts_flops: bool = True
    """Whether torch's counter sees every operation of :meth:`flops`."""

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The repeated layers in order of execution: the unit in which parameters are gathered."""

    @abstractmethod
    def draw(self, samples: int) -> tuple[Tensor, ...]:
        """Synthetic data of a few global batches, on the CPU, the same on every rank: tensors of shape
        pool × ``samples`` × …, in the order in which :meth:`forward` takes them. Views that share memory are welcome:
        a rank copies its own samples out of them."""

    @abstractmethod
    def forward(self, *batch: Tensor) -> Tensor:
        """Loss (fp32 scalar, mean over what is predicted) of a batch (tensors of shape samples × …)."""

    @abstractmethod
    def flops_per_sample(self) -> float:
        """Of one training step (forward and backward)."""

    def flops_per_pass(self) -> float:
        """What a forward pass and its backward do besides, once for all samples that they take together."""
        return 0.0

    def flops(self, *, samples: int, passes: int) -> float:
        """Of a training step that takes so many samples in so many passes, on all devices together."""
        return samples * self.flops_per_sample() + passes * self.flops_per_pass()


class LanguageModel(Trainable):
    """A transformer over samples of ``tokens_per_sample`` tokens of ``vocabulary``."""

    tokens_per_sample: int
    vocabulary: int

    def __init__(self, *, vocabulary: int, sequence: int, positions: int) -> None:
        """Raises ``ValueError`` for a ``sequence`` that the model has too few ``positions`` for."""
        super().__init__()
        if sequence > positions:
            raise ValueError(f"sequence {sequence} is longer than the {positions} positions of this model")
        self.vocabulary, self.tokens_per_sample = vocabulary, sequence

    def draw(self, samples: int) -> tuple[Tensor]:
        return (token_pool(samples=samples, sequence=self.tokens_per_sample, vocabulary=self.vocabulary),)


def transformer_flops(*, layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """Floating-point operations to train one sample of ``sequence`` tokens, a multiply-add counting as two.

    Per layer and token 12·hidden² weights (4 of attention, 8 of the feed-forward layer) and the head's
    hidden·vocabulary, each one multiply-add forward and two backward. The two products of attention count
    over the full square, masked or not. Element-wise work and embedding look-ups count as nothing, nor does
    what a fused kernel computes again in the backward pass.
    """
    weights = layers * 12 * hidden**2 + hidden * vocabulary
    return 6.0 * weights * sequence + 12.0 * layers * hidden * sequence**2


def layer_flops(model: Trainable, *batch: Tensor) -> float:
    """Floating-point operations to train ``model`` on ``batch``, as far as its linear and convolution layers do them.

    A layer that makes each number of its output from ``fan_in`` numbers does ``2 · fan_in`` operations for it forward,
    and as many again backward for its weights and for its input, unless that is the data, which needs no gradient.
    Shapes come from a forward pass on the meta device: nothing is computed or changed, ``batch`` may be empty memory.
    Products outside such layers (attention, recurrence) are the model's own business.
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
