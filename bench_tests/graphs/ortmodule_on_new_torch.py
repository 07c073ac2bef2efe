"""What ``onnxruntime.training`` needs to work with torch 2.9 and newer. Import this module first.

The last release of ``onnxruntime-training``, 1.19.2, works unchanged with torch 2.6. This module restores what torch
has moved or changed since then, in this process only. It was tested with torch 2.13, on a CPU only.

``python -m bench_tests.graphs.ortmodule_on_new_torch`` compiles the one extension that ORTModule cannot work without.
It needs g++, takes less than a minute, and has to run once in each environment.
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
"""The folder where ORTModule looks for compiled extensions, beside their sources."""


def is_built() -> bool:
    return (EXTENSIONS / "aten_op_executor.so").is_file()


def build() -> None:
    """Compile the extension through which an ONNX graph calls operators of torch.

    ORTModule's own command compiles all extensions and fails. One of them, ``torch_interop_utils``, no longer compiles:
    torch 2.13 changed the ownership of autograd nodes.
    """
    cpp_extension.load(
        name="aten_op_executor",
        sources=[str(EXTENSIONS / "cpu" / "aten_op_executor" / "aten_op_executor.cc")],
        build_directory=str(EXTENSIONS),
        verbose=True,
    )


def _mend() -> None:
    # ORTModule uses the TorchScript exporter. torch 2.9 moved that exporter and made another one the default.
    torch.onnx._internal.jit_utils = jit_utils  # type: ignore[attr-defined]
    torch.onnx._type_utils = _type_utils  # type: ignore[attr-defined]  # for models that call softmax
    torch.onnx.export = partial(torch.onnx.export, dynamo=False)

    # The extension that is not compiled serves models with autograd functions of their own. ORTModule imports the
    # extension even if such functions are forbidden.
    os.environ["ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"] = "0"
    interop = "onnxruntime.training.ortmodule.torch_cpp_extensions.torch_interop_utils"
    sys.modules[interop] = ModuleType(interop)

    # ORTModule names its phases for NVIDIA's profiler on every device. A torch without CUDA raises there.
    from onnxruntime.training.utils import torch_profile_utils

    torch_profile_utils.torch_nvtx_range_push = lambda _: None
    torch_profile_utils.torch_nvtx_range_pop = lambda: None


if __name__ == "__main__":
    build()
else:
    _mend()
