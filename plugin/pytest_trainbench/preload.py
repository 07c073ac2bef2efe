"""Imported once by the fork server, so that ranks start with the heavy libraries already in memory.

Nothing here may touch a device: a CUDA context does not survive a fork.
"""

import contextlib
import importlib
import io
import os

from pytest_trainbench.launch import PRELOAD_VARIABLE


def _preload() -> None:
    # cudaGetDeviceCount, which torch.cuda.is_available() calls by default, spoils CUDA in forked children.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Libraries greet on import; a rank that really fails to import one says so itself.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for module in [
            "torch.distributed",
            *os.environ.get(PRELOAD_VARIABLE, "").split(),
        ]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)


_preload()
