"""Import before anything that imports torchvision, transformers included.

torchvision's wheel for CUDA does not load its own operators on a torch without CUDA, and its import then fails where it
describes two of them (``nms``, ``qnms``) that are missing. Declared, they need not be there: no model here calls them.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
"""Kept alive: what it declares goes when it goes."""

if torch.version.cuda is None and not torch._C._dispatch_has_kernel("torchvision::nms"):
    for _name in ("nms", "qnms"):
        _signature = f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        LIBRARY.define(_signature)  # type: ignore[no-untyped-call]
