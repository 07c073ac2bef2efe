"""Energy that an accelerator takes, by its own counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Counter = Callable[[], float]
"""Joules since some moment; it only grows."""


def counter_of(device: torch.device) -> Counter | None:
    """The counter of ``device``, ``None`` where it has none that is known here."""
    import torch

    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return counter(f"GPU-{torch.cuda.get_device_properties(device).uuid}", nvml=pynvml)


def counter(uuid: str, *, nvml: Any) -> Counter | None:
    """NVML's total energy of the device with this UUID: of the whole board, memory included, on Volta and later.

    ``None`` where there is no such counter: on older devices, on a MIG instance, on AMD's devices. The counter moves in
    ticks of up to 100 ms, so over a window of 2 s it is off by up to 5 %.
    """
    try:
        nvml.nvmlInit()  # never shut down: the process that asks ends soon
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000  # from mJ
