"""Image classifiers, made of the parts of torchvision and timm.

Each full-size row equals the library's model, parameter by parameter. The builders' other arguments make the same
network smaller. The models have no dropout, so losses are comparable under every split. Images have the libraries'
default layout (NCHW). cuDNN chooses algorithms by rule and not by trial, so all launches run the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bench_tests.models.torchvision_ops  # noqa: F401

# isort: split
from timm.models.vision_transformer import VisionTransformer
from timm.models.vovnet import VovNet, model_cfgs
from torchvision.models import resnet as torchvision_resnet
from torchvision.models.vgg import cfgs, make_layers

from bench_tests.models.trainable import Trainable, layer_flops
from bench_tests.training.data import noise_pool, token_pool

IMAGE_POOL = 2
"""Distinct global batches. The number is small, because images are large and stay on the device."""


class Classifier(Trainable):
    """``net`` turns images (samples × 3 × ``image`` × ``image``) into scores of ``classes`` classes.

    Class frequencies follow Zipf's law, which a fresh model learns at once. An image does not determine its class, so
    the model can only memorise images.
    """

    def __init__(self, net: nn.Module, *, blocks: Iterable[nn.Module], image: int, classes: int) -> None:
        super().__init__()
        self.net = net
        self._blocks = tuple(blocks)  # a tuple, since a list of modules would give each parameter a second name
        self.image, self.classes = image, classes

    @property
    def blocks(self) -> nn.ModuleList:
        return nn.ModuleList(self._blocks)

    def draw(self, samples: int) -> tuple[Tensor, Tensor]:
        images = noise_pool(samples=samples, shape=(3, self.image, self.image), pool=IMAGE_POOL)
        return images, token_pool(samples=samples, sequence=1, vocabulary=self.classes, pool=IMAGE_POOL).squeeze(-1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return cross_entropy(self.net(images).float(), labels)

    def flops_per_sample(self) -> float:
        images = torch.empty(2, 3, self.image, self.image)  # batch norm needs more than one value per channel
        return layer_flops(self, images, torch.empty(2, dtype=torch.long)) / 2


class TransformerClassifier(Classifier):
    net: VisionTransformer

    def flops_per_sample(self) -> float:
        tokens: int = self.net.patch_embed.num_patches + self.net.num_prefix_tokens
        hidden: int = self.net.embed_dim
        return super().flops_per_sample() + 12.0 * len(self.net.blocks) * hidden * tokens**2


def alexnet(
    *,
    classes: int = 1000,
    image: int = 224,
    channels: Sequence[int] = (64, 192, 384, 256, 256),
    hidden: int = 4096,
) -> Classifier:
    """``channels`` of the five convolutions; ``hidden`` is the width of the two layers before the scores."""
    first, second, third, fourth, fifth = channels
    convolutions = [
        nn.Conv2d(3, first, 11, stride=4, padding=2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.Conv2d(second, third, 3, padding=1),
        nn.Conv2d(third, fourth, 3, padding=1),
        nn.Conv2d(fourth, fifth, 3, padding=1),
    ]
    features = nn.Sequential()
    for index, convolution in enumerate(convolutions):
        features.extend([convolution, nn.ReLU(inplace=True)])
        if index in (0, 1, 4):
            features.append(nn.MaxPool2d(3, stride=2))
    net = nn.Sequential(features, nn.AdaptiveAvgPool2d(6), nn.Flatten(), *_head(fifth * 6 * 6, hidden, classes))
    return Classifier(net, blocks=convolutions, image=image, classes=classes)


def vgg16(*, classes: int = 1000, image: int = 224, narrower: int = 1, hidden: int = 4096) -> Classifier:
    """``narrower`` divides the channels of every convolution. ``hidden`` is the width of the two layers before the
    scores."""
    plan = [width if isinstance(width, str) else width // narrower for width in cfgs["D"]]
    features = make_layers(plan)
    net = nn.Sequential(
        features, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *_head(512 // narrower * 7 * 7, hidden, classes)
    )
    # torchvision's initialisation. With the layers' defaults the signal vanishes, because so many layers have no
    # normalisation.
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    blocks = [layer for layer in features if isinstance(layer, nn.Conv2d)]
    return Classifier(net, blocks=blocks, image=image, classes=classes)


def resnet(*, block: str, layers: Sequence[int], classes: int = 1000, image: int = 224) -> Classifier:
    """``block`` names a class of ``torchvision.models.resnet``. ``layers`` gives the number of blocks in each of four
    stages."""
    net = torchvision_resnet.ResNet(getattr(torchvision_resnet, block), list(layers), num_classes=classes)
    return Classifier(net, blocks=[net.layer1, net.layer2, net.layer3, net.layer4], image=image, classes=classes)


def vovnet39a(*, classes: int = 1000, image: int = 224, **smaller: Any) -> Classifier:
    """timm's ``vovnet39a``. ``smaller`` replaces entries of its configuration."""
    configuration: Mapping[str, Any] = {**model_cfgs["vovnet39a"], **smaller}
    net = VovNet(dict(configuration), num_classes=classes)
    return Classifier(net, blocks=net.stages, image=image, classes=classes)


def vision_transformer(
    *, layers: int, hidden: int, heads: int, patch: int = 16, classes: int = 1000, image: int = 224
) -> Classifier:
    net = VisionTransformer(
        img_size=image, patch_size=patch, embed_dim=hidden, depth=layers, num_heads=heads, num_classes=classes
    )
    return TransformerClassifier(net, blocks=net.blocks, image=image, classes=classes)


def _head(features: int, hidden: int, classes: int) -> list[nn.Module]:
    """The classifier of AlexNet and VGG."""
    return [
        nn.Linear(features, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    ]
