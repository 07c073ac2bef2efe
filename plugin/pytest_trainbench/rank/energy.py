"""The energy that an accelerator consumes, read from its own counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Counter = Callable[[], float]
"""Returns joules since an unknown start. Only differences mean something."""


def counter_of(device: torch.device) -> Counter | None:
    """The energy counter of ``device``; ``None`` if the plugin knows none for it."""
    import torch

    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return counter(f"GPU-{torch.cuda.get_device_properties(device).uuid}", nvml=pynvml)


def counter(uuid: str, *, nvml: Any) -> Counter | None:
    """NVML's total energy of the device with this UUID, on Volta and later: of the whole board, memory included.

    ``None`` if there is no such counter: on older devices, on a MIG instance, on AMD's devices. The counter moves in
    ticks of up to 100 ms. So the energy of a window of 2 s may be wrong by up to 5 %.
    """
    try:
        nvml.nvmlInit()  # no nvmlShutdown(): the rank's process ends soon
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000  # from mJ
