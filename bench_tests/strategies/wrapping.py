"""The unit of gathering: a few neighbouring blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bench_tests.models.trainable import Trainable


class Unit(nn.Sequential):
    """Blocks that run one after another. Each block gets the other arguments of the unit (masks, caches) besides the
    states."""

    def forward(self, input: Tensor, *others: Any, **options: Any) -> Tensor:
        for block in self:
            input = block(input, *others, **options)
        return input


def unite(model: Trainable, blocks_per_unit: int) -> nn.ModuleList:
    """Group the model's ``blocks``, in place, into modules of about ``blocks_per_unit`` blocks each.

    For each unit the host issues one gather, one wait and one release, whatever the unit's size. With GPT 1.3B at a
    micro-batch of 1, 4 H200s wait for the host if a unit has one or two blocks.

    Raises ``ValueError`` if the model does not run its blocks from that list, because it would never run the units.
    """
    blocks = model.blocks
    if blocks_per_unit > 1:
        if not any(module is blocks for module in model.modules()):
            raise ValueError(
                f"{type(model).__name__} lists its blocks but does not run them from that list, so they cannot be"
                f" gathered {blocks_per_unit} at once"
            )
        alone = list(blocks)
        del blocks[:]
        for size in sizes(len(alone), blocks_per_unit):
            blocks.append(Unit(*alone[:size]))
            del alone[:size]
    return blocks


def sizes(blocks: int, blocks_per_unit: int) -> list[int]:
    """Number of blocks in each unit, from first to last. There are at least two units, so that one is gathered while
    another runs.

    The last unit has one block less, and the first unit has one more. Backward begins with the last unit, whose
    gradients add to nearly all activations. The gradients of the first unit add to none.
    """
    units = max(min(2, blocks), -(-blocks // blocks_per_unit))
    even = [blocks // units + (unit < blocks % units) for unit in range(units)]
    if units > 1 and even[-1] > 1:
        even[0], even[-1] = even[0] + 1, even[-1] - 1
    return even
