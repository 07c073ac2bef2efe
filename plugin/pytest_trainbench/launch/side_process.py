"""A process that starts the launches of one side of a comparison, with the interpreter of that side.

Each side has such a process, so both sides start ranks in the same way. Each process has its own elastic agent and fork
server; the sides share only the devices. The process reads requests and writes answers, one line of JSON each. The
first request is its setup, and each other request is a job. The process and its ranks end with its standard input,
however the session ends.
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
from pytest_trainbench.launch.fork_server import end_fork_server, start_fork_server
from pytest_trainbench.launch.launcher import launch
from pytest_trainbench.launch.result import LOG_LINES, LaunchResult, read_traces
from pytest_trainbench.launch.watchdog import GRACE_S
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job

PACKAGE = Path(__file__).parent.parent

END_S = 30.0
"""How long a side process may take to stop its ranks before it is killed."""

THIS_SIDE = "this side"

Message = dict[str, Any]


class SideProcess:
    """The session's end of a side process, as one side of a :class:`pytest_trainbench.runner.Runner`.

    The process starts when this object is made, and imports its libraries in the background.
    """

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
        """The environment of this side. Raises ``ValueError`` if the process ended before it answered."""
        if self._environment is None:
            self._ready()
        assert self._environment is not None
        return self._environment

    def environment_of(self, case: Case) -> Environment:
        return self.environment

    def launch(self, job: Job, *, progress: Callable[[str], None] = lambda _: None) -> LaunchResult:
        """Run :func:`pytest_trainbench.launch.launcher.launch` in the side process."""
        self._ready()
        if self.checkout is not None:
            job = dataclasses.replace(job, moved=(str(self.checkout.repository), str(self.checkout.at)))
        job.folder.mkdir(parents=True)
        self._say({"job": str(job.write())})
        until = time.monotonic() + 2 * job.limit_s + GRACE_S + END_S  # the preload may take as long
        try:
            while (answer := self._hear(until)) and "phase" in answer:
                progress(answer["phase"])
        except BaseException:
            self.close()
            raise
        if answer is None:
            self.close()
            return LaunchResult(
                outcome="crash",
                reason=f"the process that starts its ranks gave no answer: {self._last_words()}",
                detail="\n".join(self._log_lines()[-LOG_LINES:]),
            )
        if self.name != THIS_SIDE:
            answer["by_hand"] = ""  # the user's shell is not in that environment
        ended = LaunchResult(**answer)
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
                start_new_session=True,  # Ctrl-C reaches only the session, which then ends this process
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
            raise ValueError(f"{self.name}: the process that starts its ranks could not start: {self._last_words()}")
        found = Environment.from_json(answer)
        # Both sides run this harness, whichever version the other environment has.
        self._environment = dataclasses.replace(
            found, suspects={**found.suspects, "pytest-trainbench": version("pytest-trainbench")}
        )

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # _hear reports that the process is gone
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _hear(self, until: float) -> Message | None:
        """The next answer; ``None`` if the process ended, or has not answered by ``until``."""
        try:
            return self._heard.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _log_lines(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]

    def _last_words(self) -> str:
        return next(iter(self._log_lines()[-1:]), "its log is empty")


@contextlib.contextmanager
def sides(
    other: Other, *, hardware: Hardware, root: Path, preload: str, limit_s: float
) -> Iterator[tuple[SideProcess, SideProcess]]:
    """The ``other`` side and this side. Both end with the block, and leave nothing behind.

    Raises ``ValueError`` if a commit cannot be checked out.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainbench-")))
        # Both sides use this harness, so that only the measured code differs. The link exists because the harness's own
        # folder may hold all libraries of this interpreter.
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
    """The current folder of a side: the checkout's counterpart of this process's current folder."""
    stands = checkout.stands_for(Path.cwd()) if checkout else None
    return stands if stands is not None and stands.is_dir() else checkout.at if checkout else Path.cwd()


def _listen(answers: IO[str], heard: queue.SimpleQueue[Message | None]) -> None:
    with answers:
        for line in answers:
            with contextlib.suppress(ValueError):  # a killed process may leave an incomplete last line
                message = json.loads(line)
                if isinstance(message, dict):  # a sitecustomize may print before the process begins
                    heard.put(message)
    heard.put(None)


def main() -> None:
    """Run the side process. The module's docstring describes it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers

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
            # The session reads the traces from the job's folder.
            say({name: value for name, value in vars(ended).items() if name != "traces"})
    finally:
        end_fork_server()
        if abandoned.is_set():
            if setup["checkout"] is not None:
                Checkout.from_json(setup["checkout"]).remove()
            shutil.rmtree(setup["folder"], ignore_errors=True)


def _take(requests: queue.SimpleQueue[Message], abandoned: threading.Event) -> None:
    """Read requests until standard input ends.

    The session sends ``end`` when it is done. Without ``end``, the session was killed, and this process must clean up.
    """
    done = False
    for line in sys.stdin:
        message = json.loads(line)
        if "end" in message:
            done = True
        else:
            requests.put(message)
    if not done:
        abandoned.set()
    # SIGTERM also ends a launch that is running.
    os.kill(os.getpid(), signal.SIGTERM)


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
