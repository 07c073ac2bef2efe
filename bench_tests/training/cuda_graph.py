"""Work of a CUDA device, recorded once and replayed: the host issues one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """The device work of ``once`` as a CUDA graph. :meth:`replay` runs it again on the same tensors.

    Recording runs nothing: ``result`` (the return value of ``once``) and everything else that ``once`` writes hold
    nothing useful before the first replay. ``once`` must have run before, on the recording stream or on a stream that
    the recording stream has waited for. ``once`` must never wait for the device.

    ``peak_bytes`` is the peak of allocated memory during recording; recording resets the allocator's peak. Replays need
    as much memory, but the allocator's figures do not include it: for the allocator, memory that ``once`` has released
    is free.

    Raises ``ValueError`` without a CUDA device. See
    https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture.
    """

    def __init__(self, once: Callable[[], Result]) -> None:
        if not torch.cuda.is_available():
            raise ValueError("CUDA graphs need a CUDA device, and there is none")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        stream = torch.cuda.current_stream()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            self._graph,
            # The default stream cannot be recorded. With ``None`` torch takes another stream.
            stream=None if stream == torch.cuda.default_stream() else stream,
            # The process group's watchdog thread queries the device meanwhile, which must not break the recording.
            capture_error_mode="thread_local",
        ):
            self.result = once()
        self.peak_bytes = torch.cuda.max_memory_allocated()

    def replay(self) -> None:
        self._graph.replay()
