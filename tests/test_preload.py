"""Preloading modules does not open the device, so that ranks forked later can open it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from pytest_trainbench.launch import preload


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch with CUDA and the driver's library. Only the second of two devices is visible."""
    capability = {0: (8, 0), 1: (9, 0)}
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetCudaComputeCapability=capability.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.mark.usefixtures("gpus")
def test_the_device_cannot_be_opened_but_its_capability_is_known() -> None:
    before = torch.cuda._lazy_init, torch.cuda.get_device_capability
    with preload.no_device():
        assert torch.cuda.get_device_capability() == torch.cuda.get_device_capability(torch.device("cuda", 0)) == (9, 0)
        with pytest.raises(RuntimeError, match="must not open the device"):
            torch.cuda.get_device_properties(0)
        with pytest.raises(RuntimeError, match="must not open the device"):
            torch.cuda.init()
    assert (torch.cuda._lazy_init, torch.cuda.get_device_capability) == before


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA, which is guarded")
def test_without_cuda_there_is_nothing_to_guard() -> None:
    with preload.no_device():
        assert torch.cuda._lazy_init.__name__ == "_lazy_init"


def test_preloaded_objects_are_frozen_for_the_garbage_collector() -> None:
    """The test uses a fresh interpreter, because measuring in other tests unfreezes objects."""
    told = "import pytest_trainbench.launch.preload, gc; print(gc.get_freeze_count() > 0.9 * len(gc.get_objects()))"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "True\n"
