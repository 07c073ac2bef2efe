"""What every model here looks like to a strategy: a module that turns tokens into their loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class LanguageModel(nn.Module, ABC):
    """A transformer with its objective.

    One tensor in and one scalar out: wrappers that walk through inputs and outputs on every forward (DDP,
    FSDP, DeepSpeed) find nothing to walk through, and the logits die inside.
    """

    vocabulary: int

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleList:
        """The repeated layers in order of execution: the unit in which parameters are gathered."""

    @abstractmethod
    def forward(self, tokens: Tensor) -> Tensor:
        """Loss (fp32 scalar, mean over the predicted tokens) of ``tokens`` (int64, samples × sequence)."""

    @abstractmethod
    def flops_per_sample(self, sequence: int) -> float | None:
        """Of one training step (forward and backward), or ``None`` where no formula is known."""


def transformer_flops(*, layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """Floating-point operations to train one sample of ``sequence`` tokens, a multiply-add counting as two.

    Per layer and token 12·hidden² weights (4 of attention, 8 of the feed-forward layer) and the head's
    hidden·vocabulary, each one multiply-add forward and two backward. The two products of attention count
    over the full square, masked or not. Element-wise work and embedding look-ups count as nothing, nor does
    what a fused kernel computes again in the backward pass.
    """
    weights = layers * 12 * hidden**2 + hidden * vocabulary
    return 6.0 * weights * sequence + 12.0 * layers * hidden * sequence**2
