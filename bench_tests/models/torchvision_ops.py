"""Import before anything that imports torchvision, transformers included.

torchvision's wheel for CUDA does not load its own operators on a torch without CUDA, and its import then fails where it
describes two of them (``nms``, ``qnms``) that are missing. Declared, they need not be there: no model here calls them.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
"""Kept alive: what it declares goes when it goes."""


def _declare_missing() -> None:
    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return
    # What loads is loaded now, as torchvision would: an operator must not be declared twice.
    with contextlib.suppress(OSError):
        library = Path(found.submodule_search_locations[0]) / "_C.so"
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        try:
            getattr(torch.ops.torchvision, name)
        except AttributeError:
            signature = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            LIBRARY.define(signature)  # type: ignore[no-untyped-call]


_declare_missing()
