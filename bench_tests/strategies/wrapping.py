"""What is gathered at once: a few neighbouring blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bench_tests.models.trainable import Trainable


class Unit(nn.Sequential):
    """Blocks that run one after another. What a model hands a block besides its states (masks, caches) all of them
    get."""

    def forward(self, input: Tensor, *others: Any, **options: Any) -> Tensor:
        for block in self:
            input = block(input, *others, **options)
        return input


def unite(model: Trainable, blocks_per_unit: int) -> nn.ModuleList:
    """The model's ``blocks``, about ``blocks_per_unit`` of which are now one module each.

    The host asks for a unit's parameters, waits for them and lets go of them once, however large it is: with GPT 1.3B
    at a micro-batch of 1, units of one or two blocks are what 4 H200s wait for.

    Raises ``ValueError`` for a model that does not run its blocks from that list: what is put into it would never run.
    """
    blocks = model.blocks
    if blocks_per_unit > 1:
        if not any(module is blocks for module in model.modules()):
            raise ValueError(
                f"{type(model).__name__} lists its blocks and does not run them from that list: they cannot be gathered"
                f" {blocks_per_unit} at once"
            )
        alone = list(blocks)
        del blocks[:]
        for size in sizes(len(alone), blocks_per_unit):
            blocks.append(Unit(*alone[:size]))
            del alone[:size]
    return blocks


def sizes(blocks: int, blocks_per_unit: int) -> list[int]:
    """Blocks in each unit, from first to last: at least two units, so that one is gathered while another runs.

    The last has one less for which the first has one more: backward begins with the last, and its gradients come on top
    of nearly all activations, those of the first on top of none.
    """
    units = max(min(2, blocks), -(-blocks // blocks_per_unit))
    even = [blocks // units + (unit < blocks % units) for unit in range(units)]
    if units > 1 and even[-1] > 1:
        even[0], even[-1] = even[0] + 1, even[-1] - 1
    return even
