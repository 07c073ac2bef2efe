"""Makes torchvision importable on a torch without CUDA. Import this module before torchvision or transformers.

torchvision's wheel for CUDA cannot load its own operators on a torch without CUDA. Its import then fails, because it
describes two missing operators (``nms``, ``qnms``). A declaration without an implementation is enough: no model of the
suite calls them.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
"""A module constant, because torch removes the declarations when the library object is deleted."""


def _declare_missing() -> None:
    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return
    # Load the operators now, as torchvision would: an operator must not be declared twice.
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
