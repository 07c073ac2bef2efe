"""Import before ``onnxruntime.training``: what its last release, 1.19.2, needs to work with torch 2.9 and newer.

It works with torch 2.6 as it is. What torch has moved or changed since is put back here, for this process. Tried with
torch 2.13, on a CPU only.

Run as ``python -m bench_tests.graphs.ortmodule_on_new_torch``, it compiles the one extension that ORTModule does not
work without: once for an environment, with g++, in less than a minute.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import onnxruntime
import torch.onnx
from torch.onnx._internal.torchscript_exporter import _type_utils, jit_utils
from torch.utils import cpp_extension

EXTENSIONS = Path(onnxruntime.__file__).parent / "training" / "ortmodule" / "torch_cpp_extensions"
"""Where ORTModule looks for what was compiled, beside the sources."""


def is_built() -> bool:
    return (EXTENSIONS / "aten_op_executor.so").is_file()


def build() -> None:
    """Compile the extension through which an ONNX graph calls operators of torch.

    ORTModule's own command compiles all that there are, and one of them, ``torch_interop_utils``, cannot be compiled
    any more: torch 2.13 changed how a node of autograd is owned.
    """
    cpp_extension.load(
        name="aten_op_executor",
        sources=[str(EXTENSIONS / "cpu" / "aten_op_executor" / "aten_op_executor.cc")],
        build_directory=str(EXTENSIONS),
        verbose=True,
    )


def _mend() -> None:
    # ORTModule is built on the exporter through TorchScript. In torch 2.9 that moved, and is no longer the default.
    torch.onnx._internal.jit_utils = jit_utils  # type: ignore[attr-defined]
    torch.onnx._type_utils = _type_utils  # type: ignore[attr-defined]  # used where a model calls softmax
    torch.onnx.export = partial(torch.onnx.export, dynamo=False)

    # The extension that was not compiled is for models with functions of autograd of their own. Not allowing them does
    # not keep it from being imported.
    os.environ["ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"] = "0"
    interop = "onnxruntime.training.ortmodule.torch_cpp_extensions.torch_interop_utils"
    sys.modules[interop] = ModuleType(interop)

    # It names its phases for NVIDIA's profiler whatever the device, and a torch without CUDA refuses.
    from onnxruntime.training.utils import torch_profile_utils

    torch_profile_utils.torch_nvtx_range_push = lambda _: None
    torch_profile_utils.torch_nvtx_range_pop = lambda: None


if __name__ == "__main__":
    build()
else:
    _mend()
