"""The loss of language models. Its memory matters, because the scores are the largest tensor of a step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad


def token_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy (fp32 scalar) of ``scores`` (samples × sequence × vocabulary, any floating-point type).

    ``labels`` are tokens (int64, samples × sequence). Tokens with label -100 do not count.

    Under autocast the scores go in unchanged: torch keeps their log-softmax in 16 bits and computes the loss in fp32.
    Without autocast, 16-bit scores would give a 16-bit loss, and near 10 such a loss moves in steps of 1/16. This
    function therefore copies the scores to fp32 first. The copy is twice as large as the scores: 1.9 GiB for 64 samples
    of 512 tokens and a vocabulary of 30,522. A GPU writes and reads the copy several times.
    """
    if scores.is_meta or not torch.is_autocast_enabled(scores.device.type):  # the meta device has no autocast
        scores = scores.float()
    return cross_entropy(scores.flatten(0, 1), labels.flatten())


def next_token_loss(scores: Tensor, tokens: Tensor) -> Tensor:
    """:func:`token_loss` of a decoder: position ``i`` predicts token ``i + 1``. The last position predicts nothing."""
    return token_loss(scores, pad(tokens[:, 1:], (0, 1), value=-100))
