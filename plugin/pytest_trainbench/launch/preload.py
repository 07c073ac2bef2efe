"""The fork server imports this module once, so that ranks start with the heavy libraries already in memory.

Nothing here may touch a device, because a CUDA context does not survive a fork.
"""

import atexit
import contextlib
import gc
import importlib
import io
import os
import shutil
from collections.abc import Iterator
from typing import Any

from pytest_trainbench.launch.fork_server import PRELOAD_VARIABLE, SOCKETS_VARIABLE
from pytest_trainbench.launch.private import cuda_closed, nvml_index
from pytest_trainbench.rank.host_counters import scattered


def _preload() -> None:
    # By default torch.cuda.is_available() calls cudaGetDeviceCount, which breaks CUDA in forked children.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Some libraries print on import. If an import really fails, the rank reports it itself.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), no_device():
        for module in [
            "torch.distributed",
            *os.environ.get(PRELOAD_VARIABLE, "").split(),
        ]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)


@contextlib.contextmanager
def no_device() -> Iterator[None]:
    """Let the import of a module fail if it opens a device. The ranks, which may open devices, import it instead.

    Most such modules only ask for the compute capability. NVML answers that without opening a device. For example,
    torchao asks on import, and transformers imports torchao if it is installed.
    """
    import torch

    def refuse() -> None:
        raise RuntimeError("a module that is imported ahead of time must not open the device")

    if torch.version.cuda is None:
        yield
        return
    with cuda_closed(refuse, _capability):
        yield


def _capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a CUDA device (default: device 0)."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    try:
        index = nvml_index(torch.device("cuda", 0) if device is None else device)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(index))
    finally:
        pynvml.nvmlShutdown()
    return major, minor


if folder := os.environ.pop(SOCKETS_VARIABLE, ""):
    # The server exits normally if the session is killed. Ranks, which are forked from it, never run this.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
_preload()
scattered()
# Without this, each full garbage collection of each rank visits half a million objects and copies their pages. That
# took 0.6 of the 3.8 s of a small launch.
gc.collect()
gc.freeze()
