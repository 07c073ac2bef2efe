"""U-Net with bilinear upsampling: O. Ronneberger et al., arXiv 1505.04597, in the version of milesial/Pytorch-UNet
(batch norm, padded convolutions)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, pad

from bench_tests.models.trainable import Trainable, layer_flops
from bench_tests.models.vision import IMAGE_POOL
from bench_tests.training.data import noise_pool


class UNet(Trainable):
    """Decides for every pixel whether the sum of its three colours is positive."""

    def __init__(self, *, channels: Sequence[int], image: Sequence[int]) -> None:
        super().__init__()
        self.image = tuple(image)
        self.first = _convolutions(3, channels[0], channels[0])
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), _convolutions(above, below, below)) for above, below in pairwise(channels)
        )
        # On the way up, a level receives as many channels from the level below as it kept on the way down.
        levels = list(reversed(channels))[1:]
        above = [*levels[1:], levels[-1]]
        self.up = nn.ModuleList(
            _convolutions(2 * level, level, result) for level, result in zip(levels, above, strict=True)
        )
        self.scores = nn.Conv2d(channels[0], 2, 1)

    @property
    def blocks(self) -> nn.ModuleList:
        return nn.ModuleList([self.first, *self.down, *self.up])

    def draw(self, samples: int) -> tuple[Tensor, Tensor]:
        images = noise_pool(samples=samples, shape=(3, *self.image), pool=IMAGE_POOL)
        return images, torch.stack([batch.sum(1) > 0 for batch in images])

    def forward(self, images: Tensor, masks: Tensor) -> Tensor:  # type: ignore[override]
        beside = [self.first(images)]
        for down in self.down:
            beside.append(down(beside[-1]))
        x = beside.pop()
        for up in self.up:
            skipped = beside.pop()
            x = interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
            rows, columns = skipped.shape[2] - x.shape[2], skipped.shape[3] - x.shape[3]
            x = pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            x = up(torch.cat([skipped, x], dim=1))
        return cross_entropy(self.scores(x).float(), masks.long())

    def flops_per_sample(self) -> float:
        return layer_flops(self, torch.empty(2, 3, *self.image), torch.empty(2, *self.image, dtype=torch.bool)) / 2


def unet(*, channels: Sequence[int] = (64, 128, 256, 512, 512), image: Sequence[int] = (640, 959)) -> UNet:
    """``channels`` has one entry for each level, from the top; the last two are equal. ``image`` is rows × columns."""
    return UNet(channels=channels, image=image)


def _convolutions(inputs: int, middle: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, middle, outputs)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)
