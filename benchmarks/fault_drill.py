"""Plant faults in launches and in stored files, and check what becomes of each.

    python -m benchmarks.fault_drill --faults 100 --seed 1

Each fault must have the right outcome and a sentence with the cause. It must leave no process, temporary file or shared
memory behind, and end within its limit. The output is docs/faults.md. The ranks run on this machine's CPU.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any
from unittest import mock

from tabulate import tabulate

from pytest_trainbench.hardware.detect import find
from pytest_trainbench.hardware.resolve import HardwareNotFound, resolve
from pytest_trainbench.judge.aggregate import reduce
from pytest_trainbench.launch.fork_server import end_fork_server, start_fork_server
from pytest_trainbench.launch.keyed_store import KeyedServer
from pytest_trainbench.launch.launcher import launch
from pytest_trainbench.launch.private import fork_server_pid
from pytest_trainbench.launch.ranks import pids, state
from pytest_trainbench.schema.case import Case
from pytest_trainbench.schema.job import Job
from pytest_trainbench.schema.mesh import MeshShape
from pytest_trainbench.schema.plan import Plan
from pytest_trainbench.schema.record import Launch, Record, dump
from pytest_trainbench.store import baseline
from pytest_trainbench.store.history import Entry, Log, read_runs

ROOT = Path(__file__).parent.parent

LIMIT_S = 20.0
"""Limit of a launch. A collective has half of it."""

LATE_S = 10.0
"""How much later than its limit a launch may end, besides the start of its ranks."""

START_S = 20.0
"""How long the start and the end of a launch may take besides its limit, on a busy machine of two cores."""

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One kind of fault.

    run: plants the fault in a folder, and returns the outcome and the sentence.
    expected: a regular expression for ``outcome: sentence``.
    limit_s: how long it may take.
    """

    run: Callable[[Path, random.Random], tuple[str, str]]
    expected: str
    limit_s: float = 10.0


@dataclass(kw_only=True)
class Tally:
    """What became of all faults of one kind. ``lost``: what was wrong; ``left``: what stayed behind."""

    times: int = 0
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


# Faults in a rank


def job(folder: Path, *, limit_s: float = LIMIT_S, **params: Any) -> Job:
    return Job(
        case=Case(builder="benchmarks.drill_steps:train", mesh=MeshShape(dp=RANKS), params=params),
        device_kind="cpu",
        folder=folder / "job",
        limit_s=limit_s,
        collective_limit_s=limit_s / 2,
        plan=Plan(warmup=4, min_steps=8, max_steps=8),
        import_path=(str(ROOT),),
    )


def ended(one: Job) -> tuple[str, str]:
    found = launch(one)
    if found.outcome != "ok":
        return found.outcome, str(found.reason)
    judged = reduce(found.traces, peak_tflops=None)
    return judged.outcome, str(judged.reason)


def in_a_rank(fault: str, expected: str) -> Drill:
    """A fault of :mod:`benchmarks.drill_steps`, on a rank and at a step of chance."""

    def run(folder: Path, chance: random.Random) -> tuple[str, str]:
        culprit = chance.randrange(RANKS)
        outcome, said = ended(job(folder, fault=fault, culprit=culprit, at_step=chance.choice([0, 1, 3, 9])))
        # "rank N" in the expectation stands for the rank at fault.
        return outcome, re.sub(rf"\brank {culprit}\b", "rank N", said)

    return Drill(run=run, expected=expected, limit_s=LIMIT_S + LATE_S + START_S)


def kill_fork_server(folder: Path, chance: random.Random) -> tuple[str, str]:
    one, wait_s = job(folder), chance.random()

    def end() -> None:
        while not any((one.folder / f"pid-{rank}").exists() for rank in range(RANKS)):
            time.sleep(0.01)
        time.sleep(wait_s)
        if (pid := fork_server_pid()) is not None:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    found = ended(job(folder, fault="collective not joined"))
    thread.join()
    start_fork_server("")
    return found


def full_disk(folder: Path, chance: random.Random) -> tuple[str, str]:
    with mock.patch.object(Job, "write", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        return ended(job(folder))


# Faults in data


def sample() -> Record:
    one = Launch(step_ms=[2.0, 1.0, 1.0], steady_from=1, losses=[2.0, 1.0], metrics={"step_ms": 1.0})
    return Record(
        case=Case(builder="benchmarks.drill_steps:train", mesh=MeshShape(dp=RANKS)),
        label="drill",
        hardware="cpu-drill-2c",
        created="2026-01-02T03:04:05+00:00",
        launches=(one, one, one),
        environment={"must_match": {"device": "CPU"}, "suspects": {}, "machine": "0123abcd"},
        plugin_version="0.1.0",
    )


DATA: dict[str, Callable[[str, random.Random], bytes]] = {
    "truncated": lambda text, chance: text[: chance.randrange(len(text) - 2)].encode(),
    "random bytes": lambda text, chance: chance.randbytes(chance.randrange(2000)),
    "older schema": lambda text, chance: text.replace('"schema": 1', '"schema": 0', 1).encode(),
    "newer schema": lambda text, chance: text.replace('"schema": 1', '"schema": 2', 1).encode(),
    "NaN": lambda text, chance: re.sub(r'("step_ms"): [\d.]+', r"\1: NaN", text).encode(),
    "infinity": lambda text, chance: re.sub(r'("step_ms"): [\d.]+', r"\1: 1e999", text).encode(),
    "0 for a time": lambda text, chance: re.sub(r'("step_ms"): [\d.]+', r"\1: 0", text).encode(),
    "text for a time": lambda text, chance: re.sub(r'("step_ms"): [\d.]+', r'\1: "fast"', text).encode(),
    "deeply nested": lambda text, chance: b"[" * chance.randrange(60, 200_000),
    "huge": lambda text, chance: text.encode() + b" " * 2**24,
}
"""A fault in a stored file: its text and chance give its bytes."""


def in_a_baseline(change: Callable[[str, random.Random], bytes]) -> Drill:
    def run(folder: Path, chance: random.Random) -> tuple[str, str]:
        one = sample()
        path = baseline.path_of(folder, one.hardware, one.case)
        path.parent.mkdir(parents=True)
        path.write_bytes(change(dump(one.to_json()), chance))
        return _sentence(path, lambda: baseline.load(folder, one.hardware, one.case))

    return Drill(run=run, expected="refused: FILE cannot be .*; --save-baseline writes a new one")


def in_the_history(change: Callable[[str, random.Random], bytes]) -> Drill:
    def run(folder: Path, chance: random.Random) -> tuple[str, str]:
        one = sample()
        logs = [
            Log(
                folder,
                project="p",
                hardware=one.hardware,
                environment=one.environment,
                started=datetime.now(timezone.utc),
            )
            for _ in range(2)
        ]
        for log in logs:
            log.add(Entry.of(one, outcome="ok", baseline="", fails=False))
        bad = logs[0].path
        bad.write_bytes(change(bad.read_text(), chance).rstrip(b"\n") + b"\n")
        runs, problems = read_runs(folder)
        if [run.path for run in runs] != [logs[1].path]:
            return "lost", f"{len(runs)} runs were read"
        return "skipped", "; ".join(problems).replace(str(bad), "FILE")

    return Drill(run=run, expected="skipped: FILE cannot be [^;]*")


def linked(to: str) -> Drill:
    def run(folder: Path, chance: random.Random) -> tuple[str, str]:
        one = sample()
        path = baseline.path_of(folder, one.hardware, one.case)
        path.parent.mkdir(parents=True)
        path.symlink_to(to)
        return _sentence(path, lambda: baseline.load(folder, one.hardware, one.case))

    return Drill(run=run, expected="refused: FILE cannot be read as a record: it is a link .*")


def _sentence(path: Path, read: Callable[[], object]) -> tuple[str, str]:
    try:
        read()
    except ValueError as error:
        return "refused", str(error).replace(str(path), "FILE")
    return "read", "nothing was refused"


def ten_savers(folder: Path, chance: random.Random) -> tuple[str, str]:
    program = (
        "import sys; from pathlib import Path; from benchmarks.fault_drill import sample; from"
        " pytest_trainbench.store import baseline\nfor _ in range(20): baseline.merge(Path(sys.argv[1]),"
        " {sample().case.id: sample()})"
    )
    savers = [subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=ROOT) for _ in range(10)]
    codes = {one.wait() for one in savers}
    (file,) = folder.rglob("*.*")
    same = baseline.load(folder, sample().hardware, sample().case) == sample()
    return "saved", f"{file.suffix} {same} {codes}"


def taken_port(folder: Path, chance: random.Random) -> tuple[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        try:
            KeyedServer("127.0.0.1", taken.getsockname()[1], secret=b"x" * 16, texts={})
        except OSError as error:
            return "refused", str(error.strerror)
    return "opened", ""


def hostile_hardware(folder: Path, chance: random.Random) -> tuple[str, str]:
    name = chance.choice(["../../etc", "/etc/passwd", "cpu-../..", "h200/../../x", "\0", ""])
    try:
        return "resolved", resolve(name, find("cpu")).id
    except HardwareNotFound as error:
        return "refused", str(error)


DRILLS: dict[str, Drill] = {
    "rank: exception": in_a_rank("exception", "crash: rank N failed while .*: RuntimeError: planted"),
    "rank: os._exit(3)": in_a_rank("os._exit(3)", r"crash: rank N exited with code 3 while .*"),
    "rank: os._exit(0)": in_a_rank("os._exit(0)", r"crash: rank N exited with code 0 while .*"),
    "rank: SIGKILL": in_a_rank("SIGKILL", r"crash: rank N was killed by SIGKILL while .*"),
    "rank: SIGSEGV": in_a_rank("SIGSEGV", r"crash: rank N was killed by SIGSEGV while .*"),
    "rank: SIGSTOP": in_a_rank("SIGSTOP", r"timeout: rank N was stopped by a signal \(SIGSTOP\) while .*"),
    "rank: collective not joined": in_a_rank("collective not joined", r"timeout: .*rank N was .*"),
    "rank: out of memory": in_a_rank("out of memory", r"oom: rank N failed while .*allocate memory.*"),
    "rank: NaN": in_a_rank("NaN", r"invalid: the loss of step 1 is nan.*"),
    "rank: frozen loss": in_a_rank("frozen", r"invalid: .*nothing was learned.*"),
    "rank: drifting replicas": in_a_rank("drifting replicas", r"invalid: data-parallel replicas differ.*"),
    "rank: slow": in_a_rank("slow rank", "ok: None"),
    "rank: flood of output": in_a_rank("flood of output", "ok: None"),
    "rank: torn trace": in_a_rank("torn trace", r"crash: rank N .*"),
    "fork server: SIGKILL": Drill(
        run=kill_fork_server, expected="crash: the fork server, .* was killed .*", limit_s=LIMIT_S + LATE_S + START_S
    ),
    "full temporary folder": Drill(run=full_disk, expected="crash: no space is left on the disk of .*: free some.*"),
    **{f"baseline: {name}": in_a_baseline(change) for name, change in DATA.items()},
    **{f"history: {name}": in_the_history(change) for name, change in DATA.items() if name != "truncated"},
    "baseline: dangling link": linked("nowhere"),
    "baseline: link to /etc/passwd": linked("/etc/passwd"),
    "baseline: link to /dev/zero": linked("/dev/zero"),
    "baseline: ten savers at once": Drill(run=ten_savers, expected=r"saved: \.json True \{0\}", limit_s=60.0),
    "nodes: taken port": Drill(run=taken_port, expected="refused: Address already in use.*"),
    "--hw with a path": Drill(run=hostile_hardware, expected=r"refused: --hw .*"),
}
"""All kinds of faults."""


@contextmanager
def watched(tally: Tally, folder: Path) -> Iterator[None]:
    """Note the time, and what stays behind."""
    before = _places()
    began = time.monotonic()
    yield
    tally.slowest_s = max(tally.slowest_s, time.monotonic() - began)
    until = time.monotonic() + 5
    while (left := _left(folder, before)) and time.monotonic() < until:
        time.sleep(0.1)
    tally.left += left


def _places() -> set[Path]:
    """Temporary files and shared memory of this machine, without torch's cache of compiled kernels."""
    found = {*Path(tempfile.gettempdir()).iterdir(), *Path("/dev/shm").iterdir()}
    return {path for path in found if not path.name.startswith("torchinductor_")}


def _left(folder: Path, before: set[Path]) -> list[str]:
    running = [f"process {pid}" for one in folder.rglob("job") for pid in pids(one) if state(pid) not in "ZX"]
    parts = [str(path) for path in folder.rglob("*") if path.suffix in (".tmp", ".part") or path.name == "tmp"]
    return running + parts + [str(path) for path in _places() - before if not _mapped(path)]


def _mapped(path: Path) -> bool:
    """Whether a living process uses this shared memory. It may be that of another program on this machine."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return True  # it has gone meanwhile
    if path.parent != Path("/dev/shm"):
        return False
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if f" {inode} " in maps.read_text():  # a semaphore is mapped under another name
                return True
    return False


def drill(names: Sequence[str], *, seed: int, folder: Path) -> dict[str, Tally]:
    """Plant the named faults one after the other. Each has its own folder and its own chance, from the seed."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    for number, name in enumerate(names):
        one, tally, mine = DRILLS[name], tallies[name], folder / f"{number:04d}"
        mine.mkdir()
        began = time.monotonic()
        with watched(tally, mine):
            try:
                outcome, said = one.run(mine, random.Random(f"{seed} {number} {name}"))
            except Exception as error:  # a fault that is not reported is lost
                outcome, said = "raised", f"{type(error).__name__}: {error}"
        tally.times += 1
        took_s = time.monotonic() - began
        if not re.fullmatch(one.expected, f"{outcome}: {said}") or "\n" in said:
            tally.lost.append(f"{outcome}: {said}")
        elif took_s > one.limit_s:
            tally.lost.append(f"it took {took_s:.0f} s, and its limit is {one.limit_s:g} s")
    return tallies


def chosen(faults: int, *, seed: int) -> list[str]:
    """The names of the faults to plant: every kind equally often, up to one, in an order of chance."""
    chance = random.Random(seed)
    names: list[str] = []
    while len(names) < faults:
        names += chance.sample(list(DRILLS), k=min(len(DRILLS), faults - len(names)))
    return names


def page(tallies: Mapping[str, Tally], *, seed: int) -> str:
    """docs/faults.md."""
    times = sum(one.times for one in tallies.values())
    lost = sum(len(one.lost) for one in tallies.values())
    left = sum(len(one.left) for one in tallies.values())
    rows = [
        {
            "fault": name,
            "times": tallies[name].times,
            "lost": len(tallies[name].lost),
            "left behind": len(tallies[name].left),
            "slowest s": f"{tallies[name].slowest_s:.1f}",
        }
        for name in DRILLS
        if name in tallies
    ]
    return "\n\n".join(
        [
            "# The fault drill",
            f"`python -m benchmarks.fault_drill --faults {times} --seed {seed}` planted {times} faults and printed this"
            f" page. The ranks ran on a CPU, {RANKS} in each launch, with a limit of {LIMIT_S:g} s. {lost} faults are"
            f" lost, and {left} things were left behind.",
            "* **lost**: the outcome is wrong, the sentence does not name the cause, or the end came too late.",
            "* **left behind**: processes, temporary files and shared memory that were there 5 s later.",
            tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True, colalign=("left",) + ("right",) * 4),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fault_drill", description="plant faults, check the ends"
    )
    parser.add_argument("--faults", type=int, default=len(DRILLS), help="how many faults (default: one of each kind)")
    parser.add_argument("--seed", type=int, default=0, help="which ranks, steps and bytes (default: 0)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        get_temp_dir()  # multiprocessing's own folder stays where it is, because it is removed last
        own = Path(folder) / "tmp"
        own.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(own)  # so that what others do is not counted
        start_fork_server("")
        try:
            tallies = drill(chosen(given.faults, seed=given.seed), seed=given.seed, folder=Path(folder))
        finally:
            end_fork_server()
    print(page(tallies, seed=given.seed))
    wrong = [f"{name}: {what}" for name, one in tallies.items() for what in (*one.lost, *one.left)]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
