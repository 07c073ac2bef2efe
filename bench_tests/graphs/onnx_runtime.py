"""Training through ONNX Runtime: a ``torch.compile`` backend that runs forward and backward as ONNX models.

AOTAutograd splits the captured computation into a forward and a backward graph of ATen operators. ``torch.onnx``
exports each graph as an ONNX model with fixed shapes. An ``InferenceSession`` optimises and runs the model.

Weights stay inputs of the models, so the optimizer, DDP and autocast are torch's own. Tensors are bound by address, so
no input or output is copied, and outputs are in memory of torch's allocator. The sessions keep intermediate tensors in
an arena of their own, which torch's figures of allocated memory do not include.

Nothing falls back to eager torch. Compilation raises if an operator cannot be exported, or if the device's execution
provider has no kernel for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir
import onnxruntime
import torch
from onnx_ir.tensor_adapters import to_torch_dtype
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.attention import SDPBackend, sdpa_kernel

Compiled = Callable[[list[Tensor]], list[Tensor | None]]

LEVELS = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
"""Name of a level -> ONNX Runtime's constant:
https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html"""

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""torch's device type -> the execution provider that works on that device's memory."""


def onnx_runtime(*, level: str) -> Callable[[fx.GraphModule, Sequence[Tensor]], Callable[..., Any]]:
    """A backend for ``torch.compile`` at one of the :data:`LEVELS` of graph optimisation."""

    def compile_graph(graph_module: fx.GraphModule, inputs: Sequence[Tensor]) -> Compiled:
        return _compile(graph_module, inputs, level)

    compile_both = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        # Saves weights and activations for the backward pass instead of transposed copies of them.
        partition_fn=min_cut_rematerialization_partition,
        decompositions={**core_aten_decompositions(), torch.ops.aten.native_layer_norm.default: _layer_norm},
    )

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        # Fused attention is one operator, and ONNX has no counterpart of it. The plain version consists of products and
        # a softmax. Without this switch torch would run the plain version in fp32 even for 16-bit inputs.
        reduced = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return compile_both(graph_module, inputs)
        finally:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(reduced)

    return backend


def _layer_norm(
    hidden: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer norm whose input and weights have one type, as ONNX requires.

    On a CPU, autocast gives a layer norm 16-bit inputs and fp32 weights.
    """
    if weight is None or weight.dtype == hidden.dtype:
        return NotImplemented  # type: ignore[no-any-return]  # torch then keeps the operator
    result, mean, rstd = torch.native_layer_norm(hidden.to(weight.dtype), shape, weight, bias, eps)
    return result.to(hidden.dtype), mean, rstd


def _compile(graph_module: fx.GraphModule, inputs: Sequence[Tensor], level: str) -> Compiled:
    """A boxed function that runs ``graph_module`` in an ONNX Runtime session."""
    (returned,) = (node.args[0] for node in graph_module.graph.nodes if node.op == "output")
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    # The forward pass returns some inputs unchanged, such as weights. Outputs of the session would be copies of them.
    computed = list(dict.fromkeys(node for node in returned if node is not None and node.op != "placeholder"))
    run = _Session(_only(computed, graph_module), inputs, [node.meta["val"] for node in computed], level)

    def compiled(args: list[Tensor]) -> list[Tensor | None]:
        values = dict(zip(placeholders, args, strict=True))
        args.clear()
        values.update(zip(computed, run(list(values.values())), strict=True))
        return [None if node is None else values[node] for node in returned]

    compiled._boxed_call = True  # type: ignore[attr-defined]  # it takes its arguments in a list and empties it
    return compiled


def _only(nodes: Sequence[fx.Node], graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of ``graph_module`` that returns only these nodes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(graph_module.graph, copies)
    graph.output(tuple(copies[node] for node in nodes))
    return fx.GraphModule(graph_module, graph)


class _Session:
    """An ONNX model of a graph, ready to run on tensors with the shapes, types and device of ``inputs``.

    ``outputs`` are samples of what the graph returns. Neither ``inputs`` nor ``outputs`` need data. Raises
    ``RuntimeError`` if the exported model returns other shapes or types.
    """

    def __init__(
        self, graph_module: fx.GraphModule, inputs: Sequence[Tensor], outputs: Sequence[Tensor], level: str
    ) -> None:
        self.device = outputs[0].device
        exported = torch.export.export(graph_module, tuple(inputs), strict=False)
        program = torch.onnx.export(exported, dynamo=True, verbose=False)
        assert program is not None  # the exporter returns a program unless it writes a file
        for value, output in zip(program.model.graph.outputs, outputs, strict=True):
            if to_torch_dtype(value.dtype) != output.dtype or list(value.shape) != list(output.shape):
                raise RuntimeError(f"ONNX gives {value} where torch gives {output.dtype} of {list(output.shape)}")
        self.inputs = list(map(_Slot.of, program.model.graph.inputs))
        self.outputs = list(map(_Slot.of, program.model.graph.outputs))
        # Stream 0 is torch's default stream, but ONNX Runtime reads 0 as "no stream".
        self.stream = None if self.device.type == "cpu" else torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.session = _session(program.model_proto.SerializeToString(), level, self.device, self.stream)
        self.binding = self.session.io_binding()
        self.bound: dict[str, int] = {}
        self.run_options = onnxruntime.RunOptions()
        self.run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        # A tensor that torch itself computed may not be contiguous.
        inputs = [tensor.contiguous() for tensor in inputs]
        outputs = [torch.empty(slot.shape, dtype=slot.dtype, device=self.device) for slot in self.outputs]
        for slot, tensor in zip(self.inputs, inputs, strict=True):
            self._bind(self.binding.bind_input, slot, tensor)
        for slot, tensor in zip(self.outputs, outputs, strict=True):
            self._bind(self.binding.bind_output, slot, tensor)
        if self.stream is None:
            self.session.run_with_iobinding(self.binding, self.run_options)
        else:
            # Only streams wait here, never the host. Memory that is freed after this point is reused on the current
            # stream only.
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            self.session.run_with_iobinding(self.binding, self.run_options)
            current.wait_stream(self.stream)
        return outputs

    def _bind(self, bind: Callable[..., None], slot: _Slot, tensor: Tensor) -> None:
        """Bind a tensor by its address. Most tensors have the address of the last step, so their binding is reused."""
        address = tensor.data_ptr()
        if self.bound.get(slot.name) != address:
            bind(slot.name, self.device.type, self.device.index or 0, slot.element_type, slot.shape, address)
            self.bound[slot.name] = address


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """An input or output of a model. ``element_type`` is ONNX's number for ``dtype``."""

    name: str
    shape: list[int]
    dtype: torch.dtype
    element_type: int

    @classmethod
    def of(cls, value: onnx_ir.Value) -> _Slot:
        return cls(
            name=value.name,
            shape=list(value.shape),
            dtype=to_torch_dtype(value.dtype),
            element_type=int(value.dtype),
        )


def _session(
    model: bytes, level: str, device: torch.device, stream: torch.cuda.Stream | None
) -> onnxruntime.InferenceSession:
    """A session that runs ``model`` on ``device``.

    Raises ``RuntimeError`` if the suite has no execution provider for the device, or if the provider cannot be loaded.
    """
    if device.type not in PROVIDERS:
        raise RuntimeError(f"ONNX Runtime trains on {', '.join(PROVIDERS)} here, not on {device.type}")
    provider, provider_options = PROVIDERS[device.type], {}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 3  # errors only: the warnings are about ONNX Runtime's own choices
    options.intra_op_num_threads = torch.get_num_threads()
    # A thread that spins while it waits for work takes a core from torch's threads when it is their turn.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if stream is not None:
        # Otherwise a node without a kernel would run on the CPU, and its inputs would be copied there.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        provider_options = {
            "device_id": str(device.index),
            "user_compute_stream": str(stream.cuda_stream),
            "use_tf32": str(int(torch.get_float32_matmul_precision() != "highest")),
        }
    session = onnxruntime.InferenceSession(model, options, providers=[(provider, provider_options)])
    if provider not in session.get_providers():
        # A library of the provider is missing. ONNX Runtime names it on stderr and goes on without the provider.
        raise RuntimeError(f"ONNX Runtime {onnxruntime.__version__} could not load its {provider}")
    return session
