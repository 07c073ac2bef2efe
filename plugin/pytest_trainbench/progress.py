"""Show the progress of a launch on pytest's terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

QUIET_S = 30.0
"""Minimum seconds between two progress lines if the output is not a terminal."""


@contextlib.contextmanager
def shown(
    name: str, reporter: Any, capture: Any, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str], None]]:
    """Show the phase of ``name`` after the cursor, and clear it at the end of the block.

    The block gets a function, and calls it with each new phase. ``reporter`` and ``capture`` are pytest's plugins
    ``terminalreporter`` and ``capturemanager``. Without them, nothing is shown.
    """
    if reporter is None or capture is None:
        yield lambda _: None
        return
    live, heard = reporter.isatty, clock()

    def tell(phase: str) -> None:
        nonlocal heard
        if live:
            reporter.write(f"\x1b7\x1b[K {name}: {phase}\x1b8", flush=True)
        elif clock() - heard > QUIET_S:
            heard = clock()
            reporter.write_line(f"\n  {name}: {phase}")

    with capture.global_and_fixture_disabled():
        yield tell
        if live:
            reporter.write("\x1b[K", flush=True)
