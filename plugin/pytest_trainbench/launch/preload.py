"""Imported once by the fork server, so that ranks start with the heavy libraries already in memory.

Nothing here may touch a device: a CUDA context does not survive a fork.
"""

import contextlib
import gc
import importlib
import io
import os
from collections.abc import Iterator
from typing import Any

from pytest_trainbench.launch.fork_server import PRELOAD_VARIABLE
from pytest_trainbench.launch.private import cuda_closed, nvml_index
from pytest_trainbench.rank.host_counters import scattered


def _preload() -> None:
    # cudaGetDeviceCount, which torch.cuda.is_available() calls by default, spoils CUDA in forked children.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Libraries greet on import; a rank that really fails to import one says so itself.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), no_device():
        for module in [
            "torch.distributed",
            *os.environ.get(PRELOAD_VARIABLE, "").split(),
        ]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)


@contextlib.contextmanager
def no_device() -> Iterator[None]:
    """A module that opens the device when it is imported fails to, and is left to the ranks, which may.

    What such modules mostly ask, the compute capability, the driver's library answers without opening anything:
    torchao asks on import, and transformers imports torchao wherever it is installed.
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
    """Of a device by its CUDA index, 0 unless told."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    try:
        index = nvml_index(torch.device("cuda", 0) if device is None else device)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(index))
    finally:
        pynvml.nvmlShutdown()
    return major, minor


_preload()
scattered()
# Half a million objects, which every full collection of every rank would look through, and so touch their pages: 0.6 of
# the 3.8 s of a small launch.
gc.collect()
gc.freeze()
