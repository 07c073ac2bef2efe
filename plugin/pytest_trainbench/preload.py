"""Imported once by the fork server, so that ranks start with the heavy libraries already in memory.

Nothing here may touch a device: a CUDA context does not survive a fork.
"""

import contextlib
import importlib
import io
import os

from pytest_trainbench.launch import PRELOAD_VARIABLE
from pytest_trainbench.worker import OPENED_BY


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
            if _a_fork_has_no_device():
                # Too late for this server, but a rank can say what has to change.
                os.environ[OPENED_BY] = module
                return


def _a_fork_has_no_device() -> bool:
    """Whether CUDA was touched by now: torch tells it to a forked child only."""
    import torch

    if torch.version.cuda is None:
        return False
    child = os.fork()
    if child == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


_preload()
