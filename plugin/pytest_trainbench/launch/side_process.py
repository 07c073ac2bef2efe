"""A process that starts the launches of one side of a comparison, run by that side's own interpreter.

Both sides have one, so that they start ranks alike: an elastic agent and a fork server of their own, nothing shared but
the devices. It reads requests, and writes answers, one line of JSON each: first what it is to be, then a job at a time.
It ends when its standard input does, and its ranks with it, however the session ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NoReturn

from pytest_trainbench.hardware.environment import Environment, capture
from pytest_trainbench.hardware.resolve import Hardware
from pytest_trainbench.launch.checkout import Checkout, Other, import_path
from pytest_trainbench.launch.launcher import (
    GRACE_S,
    LOG_LINES,
    Ended,
    end_fork_server,
    launch,
    read_traces,
    start_fork_server,
)
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job

PACKAGE = Path(__file__).parent.parent

END_S = 30.0
"""What a process may take to stop its ranks before it is killed."""

THIS_SIDE = "this side"

Message = dict[str, Any]


class SideProcess:
    """The other end of that process, which imports what it needs as soon as this object is made: one side of a
    :class:`pytest_trainbench.runner.Runner`."""

    def __init__(
        self,
        *,
        name: str,
        python: str,
        import_path: Sequence[str],
        checkout: Checkout | None,
        setup: Mapping[str, Any],
        modules: Path,
        log: Path,
        limit_s: float,
    ) -> None:
        self.name = name
        self.import_path = tuple(import_path)
        self.python = python
        self.checkout = checkout
        self.setup = setup
        self.root = Path(setup["root"])
        self.modules = modules
        self.log = log
        self.limit_s = limit_s
        self._environment: Environment | None = None
        self._begin()

    @property
    def environment(self) -> Environment:
        """Raises ``ValueError`` where the process did not live to tell."""
        if self._environment is None:
            self._ready()
        assert self._environment is not None
        return self._environment

    def environment_of(self, case: Case) -> Environment:
        return self.environment

    def launch(self, job: Job, *, progress: Callable[[str], None] = lambda _: None) -> Ended:
        """As :func:`pytest_trainbench.launch.launcher.launch`, over there."""
        self._ready()
        if self.checkout is not None:
            job = dataclasses.replace(job, moved=(str(self.checkout.repository), str(self.checkout.at)))
        job.folder.mkdir(parents=True)
        self._say({"job": str(job.write())})
        until = time.monotonic() + job.limit_s + GRACE_S + END_S
        try:
            while (answer := self._hear(until)) and "phase" in answer:
                progress(answer["phase"])
        except BaseException:
            self.close()
            raise
        if answer is None:
            self.close()
            return Ended(
                outcome="crash",
                reason=f"the process that starts its ranks gave no answer: {self._last_words()}",
                detail="\n".join(self._log_lines()[-LOG_LINES:]),
            )
        if self.name != THIS_SIDE:
            answer["by_hand"] = ""  # whoever types it is not in that environment
        ended = Ended(**answer)
        return dataclasses.replace(ended, traces=read_traces(job)) if ended.outcome == "ok" else ended

    def close(self) -> None:
        """End the process, and its ranks with it."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._say({"end": True})
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _begin(self) -> None:
        path = os.pathsep.join([str(self.modules), *self.import_path])
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [self.python, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=_here(self.checkout),
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the session to hear, which then ends this process
            )
        self._heard: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=_listen, args=(self._process.stdout, self._heard), daemon=True).start()
        self._say(self.setup)

    def _ready(self) -> None:
        if self._process.poll() is not None:
            self._begin()
        elif self._environment is not None:
            return
        answer = self._hear(time.monotonic() + self.limit_s)
        if answer is None:
            self.close()
            raise ValueError(f"{self.name}: the process that starts its ranks could not begin: {self._last_words()}")
        found = Environment.from_json(answer)
        # The harness is this one, whichever is installed over there.
        self._environment = dataclasses.replace(
            found, suspects={**found.suspects, "pytest-trainbench": version("pytest-trainbench")}
        )

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it is gone is heard
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _hear(self, until: float) -> Message | None:
        """The next answer; ``None`` where the process ended or has none by then."""
        try:
            return self._heard.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _log_lines(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]

    def _last_words(self) -> str:
        return next(iter(self._log_lines()[-1:]), "it said nothing")


@contextlib.contextmanager
def sides(
    other: Other, *, hardware: Hardware, root: Path, preload: str, limit_s: float
) -> Iterator[tuple[SideProcess, SideProcess]]:
    """The ``other`` side and this one, until the session ends; then nothing is left of them.

    Raises ``ValueError`` where a commit cannot be checked out.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainbench-")))
        # This harness on both sides, so that only what is measured differs; a link, since the folder that it is in may
        # hold all of this interpreter's libraries.
        modules = folder / "modules"
        modules.mkdir()
        (modules / PACKAGE.name).symlink_to(PACKAGE)
        if checkout := other.checkout(folder / "checkout"):
            stack.callback(checkout.remove)
            checkout.add()
        path = [entry or str(Path.cwd()) for entry in sys.path]

        def side(name: str, python: str, checkout: Checkout | None) -> SideProcess:
            made = SideProcess(
                name=name,
                python=python,
                import_path=import_path(path, checkout),
                checkout=checkout,
                setup={
                    "hardware": {
                        "id": hardware.id,
                        "kind": hardware.kind,
                        "device_name": hardware.device_name,
                        "count": hardware.count,
                        "uuids": hardware.uuids,
                    },
                    "root": str((checkout and checkout.stands_for(root)) or root),
                    "preload": preload,
                    "folder": str(folder),
                    "checkout": None if checkout is None else checkout.to_json(),
                },
                modules=modules,
                log=folder / f"{'this' if name == THIS_SIDE else 'other'}.log",
                limit_s=limit_s,
            )
            stack.callback(made.close)
            return made

        yield side(other.name, other.python, checkout), side(THIS_SIDE, sys.executable, None)


def _here(checkout: Checkout | None) -> Path:
    """Where a side stands: in the checkout where this process stands in the working tree."""
    stands = checkout.stands_for(Path.cwd()) if checkout else None
    return stands if stands is not None and stands.is_dir() else checkout.at if checkout else Path.cwd()


def _listen(answers: IO[str], heard: queue.SimpleQueue[Message | None]) -> None:
    with answers:
        for line in answers:
            with contextlib.suppress(ValueError):  # its last line is cut off where it was killed
                message = json.loads(line)
                if isinstance(message, dict):  # before it began, a sitecustomize may have printed anything
                    heard.put(message)
    heard.put(None)


def main() -> None:
    """The process: see the top of this module."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def say(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    signal.signal(signal.SIGTERM, _end)
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
    abandoned = threading.Event()
    threading.Thread(target=_take, args=(requests, abandoned), daemon=True).start()
    setup = requests.get()
    try:
        start_fork_server(setup["preload"])
        hardware = Hardware(**{**setup["hardware"], "uuids": tuple(setup["hardware"]["uuids"])})
        say(capture(hardware, Path(setup["root"])).to_json())
        while True:
            job = Job.read(Path(requests.get()["job"]))
            ended = launch(job, progress=lambda phase: say({"phase": phase}))
            # The traces stay in the job's folder.
            say({name: value for name, value in vars(ended).items() if name != "traces"})
    finally:
        end_fork_server()
        if abandoned.is_set():
            if setup["checkout"] is not None:
                Checkout.from_json(setup["checkout"]).remove()
            shutil.rmtree(setup["folder"], ignore_errors=True)


def _take(requests: queue.SimpleQueue[Message], abandoned: threading.Event) -> None:
    """Whoever started this process says when it is done with it; where it is gone without a word, it was killed, and
    what it would have tidied up is left to this process."""
    done = False
    for line in sys.stdin:
        message = json.loads(line)
        if "end" in message:
            done = True
        else:
            requests.put(message)
    if not done:
        abandoned.set()
    # A launch that is under way ends as it does at any such signal.
    os.kill(os.getpid(), signal.SIGTERM)


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
