"""Work of a CUDA device, recorded once and replayed: the host launches one thing instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """What ``once`` does on the device, as a CUDA graph: :meth:`replay` does it again, reading and writing the same
    tensors. Recording runs nothing, so ``result`` (what ``once`` returned) and all else that it writes hold nothing of
    use until the first replay. ``once`` must have run before, on the stream that it is recorded on or one that waited
    for it, and must never wait for the device.

    ``peak_bytes`` is what was allocated at most while recording (the allocator's peak is reset for that). Replays need
    as much, and the allocator's figures miss it: to them, what ``once`` let go of is free.

    See https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture. Raises ``ValueError`` where there
    is no CUDA device.
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
            # The default stream cannot be recorded; torch has another for that.
            stream=None if stream == torch.cuda.default_stream() else stream,
            # What the process group's watchdog thread asks the device meanwhile must not spoil the recording.
            capture_error_mode="thread_local",
        ):
            self.result = once()
        self.peak_bytes = torch.cuda.max_memory_allocated()

    def replay(self) -> None:
        self._graph.replay()
