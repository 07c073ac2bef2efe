"""Runs a loop step by step that its library only offers as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


class Turns:
    """A function that runs only while :meth:`step` waits for it.

    The function runs in a thread of its own and calls :meth:`pause` at the end of each piece of work. One of the two
    threads always waits for the other. Both therefore issue work to the device in one order, like a single thread. A
    dispatch mode of the caller's thread, such as a FLOP counter, sees the operations of the piece that the caller waits
    for.
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        self._work, self._device = work, device
        # Locks serve as binary semaphores: each is released by the other thread. threading.Semaphore is Python code on
        # top of locks.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._modes: list[TorchDispatchMode] = []
        self._seen_by = ExitStack()
        self._stopping = False
        self._ended = False
        self._error: BaseException | None = None
        # A daemon thread, because at the end of the process it still waits for a turn that never comes.
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the work run to its next pause.

        Raises what the work raises, and ``RuntimeError`` if the work ends.
        """
        if not self._ended:
            self._modes = _get_current_dispatch_mode_stack()
            self._go.release()
            self._back.acquire()
        if self._error is not None:
            raise self._error
        if self._ended:
            raise RuntimeError("the work has ended: there is no next step")

    def pause(self) -> None:
        """Wait for the next turn. The work calls this method."""
        self._seen_by.close()
        self._back.release()
        self._wait()

    def stop(self) -> None:
        """End the work at its pause. Raises what the work raises while it ends."""
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
        # Dispatch modes belong to a thread, so this thread enters the caller's modes.
        for mode in self._modes:
            self._seen_by.enter_context(mode)

    def _run(self) -> None:
        try:
            self._wait()
            # The current device belongs to a thread too.
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
    """Ends the work. It is no ``Exception``, so the work's own handlers do not catch it."""
