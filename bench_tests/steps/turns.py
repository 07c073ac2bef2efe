"""A loop that cannot be taken apart, run piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


class Turns:
    """A function that goes on only while :meth:`step` waits for it.

    It runs in a thread of its own, and calls :meth:`pause` where a piece of its work ends. Of the two threads one
    always waits for the other, so that they issue work to the device in one order, as a single thread would. A dispatch
    mode of the caller's thread, such as a FLOP counter, sees the operations of the piece that it waits for.
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        self._work, self._device = work, device
        # Locks as binary semaphores, each released by the other side: threading's are built on them, in Python.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._modes: list[TorchDispatchMode] = []
        self._seen_by = ExitStack()
        self._stopping = False
        self._ended = False
        self._error: BaseException | None = None
        # A daemon: it waits for its turn when the process ends, and nobody gives it one.
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the work go on to its next pause.

        Raises what the work raises, and ``RuntimeError`` if it comes to its end.
        """
        if not self._ended:
            self._modes = _get_current_dispatch_mode_stack()
            self._go.release()
            self._back.acquire()
        if self._error is not None:
            raise self._error
        if self._ended:
            raise RuntimeError("the work is at its end: there is no next step")

    def pause(self) -> None:
        """Called by the work: wait for the next turn."""
        self._seen_by.close()
        self._back.release()
        self._wait()

    def stop(self) -> None:
        """End the work where it pauses. Raises what it raises on its way out."""
        self._stopping = True
        if not self._ended:
            self._go.release()
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        self._go.acquire()
        if self._stopping:
            raise _Stopped
        # Which modes are on is a thread's own matter.
        for mode in self._modes:
            self._seen_by.enter_context(mode)

    def _run(self) -> None:
        try:
            self._wait()
            # And so is which device is the current one.
            if self._device.type != "cpu":
                torch.accelerator.set_device_index(self._device)
            self._work()
        except _Stopped:
            pass
        except BaseException as error:
            self._error = error
        self._seen_by.close()
        self._ended = True
        self._back.release()


class _Stopped(BaseException):
    """Goes through the work's own handlers of exceptions."""
