"""All settings, read once into one frozen object: command line > environment > ini > default."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.catalog import Price
from pytest_trainbench.store.history import default_folder


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]*", text):
        raise ValueError("it must be a whole number above 0")
    return int(text)


def port_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text, flags=re.ASCII) or not 0 < int(text) < 2**16:
        raise ValueError("it must be a port, 1 to 65535")
    return int(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text, flags=re.ASCII):
        raise ValueError("it must be a whole number, 0 or more")
    return int(text)


def fraction(text: str) -> float:
    """``"1%"``, ``"0.01"``, ``"1/100"`` → 0.01."""
    try:
        value = float(Fraction(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1))
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not 0 < value < 1:
        percent = f"; for {text} percent type {text}%" if 1 <= value < 100 and not text.endswith("%") else ""
        raise ValueError(f"it must be between 0 and 1, for example 1%, 0.01 or 1/100{percent}")
    return value


def _share(text: str) -> float:
    return 1.0 if text in ("1", "100%") else fraction(text)


def _seconds(text: str) -> float:
    return _positive(text, "a number of seconds above 0")


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "false", "0", "no"):
        raise ValueError("it must be true or false")
    return text.lower() in ("true", "1", "yes")


def gigabytes(text: str) -> float:
    """``"32"``, ``"32GB"`` → 32.0 (GB of 10⁹ bytes)."""
    return _positive(text.upper().removesuffix("GB"), "a number of GB above 0, for example 32GB")


def price(text: str) -> Price:
    """``"2.5USD"``: 2.5 US dollars for one device and hour."""
    found = re.fullmatch(r"([0-9.]+) ?([A-Za-z]{3})", text)
    wanted = "an amount above 0 with a currency, per device and hour, for example 2.5USD"
    if found is None:
        raise ValueError(f"it must be {wanted}")
    return Price(amount=_positive(found[1], wanted), currency=found[2].upper(), per="hour", date=None, source="--price")


def _path(text: str) -> Path:
    """A path with ``~`` expanded. No shell expands it in an ini file, or after ``--history=``."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("its ~ names no user of this machine") from None


def _history(text: str) -> Path | None:
    return None if text == "none" else _path(text)


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"it must be {what}")
    return value


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting. ``parse`` raises ``ValueError`` for invalid text."""

    help: str
    default: Any
    parse: Callable[[str], Any] = str
    metavar: str | None = None


LAUNCHES, STORED_LAUNCHES = 3, 5
"""Default numbers of launches of a nightly run and of a baseline. A nightly run adds launches to a row in doubt; a
baseline must be good enough for all nights. With noise of 1 %, five stored launches find 92 % of slowdowns of 3 %, and
three find 72 % (docs/detection.md)."""

OPTIONS: dict[str, Option] = {
    "hw": Option(
        help="hardware to run on: auto, cpu, a family such as a100, or an exact id (default: auto)",
        default="auto",
        metavar="NAME",
    ),
    "save_baseline": Option(
        help="store the measured cases as baselines instead of judging them",
        default=False,
        parse=_switch,
    ),
    "add": Option(
        help="with --save-baseline, add the launches to each stored baseline as another visit or machine, and refuse to"
        " replace one",
        default=False,
        parse=_switch,
    ),
    "missing": Option(
        help="run only the cases that have no baseline; with --save-baseline, this continues a run that was cut off",
        default=False,
        parse=_switch,
    ),
    "stale": Option(
        help="run only the cases whose baseline was made by other code than the current one, or does not say which code"
        " made it; with --save-baseline, this replaces these baselines",
        default=False,
        parse=_switch,
    ),
    "calibrate": Option(
        help="test which slowdowns a run on this machine detects: compare launches with no change, and launches with"
        " planted slowdowns",
        default=False,
        parse=_switch,
    ),
    "against": Option(
        help="compare with another Python interpreter or commit instead of stored baselines; a run measures both sides"
        " in turns",
        default=None,
        metavar="PYTHON|COMMIT",
    ),
    "launches": Option(
        help=f"launches of each case (default: {LAUNCHES}; with --save-baseline {STORED_LAUNCHES})",
        default=None,
        parse=_count,
        metavar="N",
    ),
    "confirm": Option(
        help="maximum number of extra launches of a row, one at a time: while the row is in doubt, or while the"
        " launches of a new baseline are too noisy (default: 7)",
        default=7,
        parse=_whole,
        metavar="N",
    ),
    "night_error": Option(
        help="false-alarm budget of a run: the chance that a run with no change reports any regression, over all rows"
        " (default: 1/30)",
        default=1 / 30,
        parse=fraction,
        metavar="CHANCE",
    ),
    "floor": Option(
        help="smallest change of a time that can be a regression, however certain the change is (default: by metric,"
        " 1%%)",
        default=None,
        parse=fraction,
        metavar="PERCENT",
    ),
    "fail_on_improvement": Option(
        help="let an improvement fail its test too, so that somebody stores a new baseline",
        default=False,
        parse=_switch,
    ),
    "unjudged_share": Option(
        help="where CI is set, the run fails if more than this share of its rows judged no time, because they are noisy"
        " or have nothing to compare with; 100%% switches this off (default: 1/2)",
        default=0.5,
        parse=_share,
        metavar="SHARE",
    ),
    "stale_days": Option(
        help="the report flags baselines that are older than this (default: 90)",
        default=90,
        parse=_count,
        metavar="DAYS",
    ),
    "baseline_dir": Option(
        help="folder of the baselines (default: baselines, beside the ini file)",
        default=Path("baselines"),
        parse=_path,
        metavar="DIR",
    ),
    "devices": Option(
        help="use at most this many devices of each machine (default: all; on a CPU 4 ranks share the cores)",
        default=None,
        parse=_count,
        metavar="N",
    ),
    "nodes": Option(
        help="number of machines, this one included; start `python -m pytest_trainbench.nodes HOST:PORT` on each other"
        " machine (default: 1)",
        default=1,
        parse=_count,
        metavar="N",
    ),
    "node_port": Option(
        help="port of this machine that the other nodes connect to (default: 29600)",
        default=29600,
        parse=port_number,
        metavar="PORT",
    ),
    "node_host": Option(
        help="address of this machine that the other nodes connect to (default: all of its addresses)",
        default="",
        metavar="ADDRESS",
    ),
    "memory_cap": Option(
        help="let each device fail allocations beyond this, as a smaller device would, for example 32GB",
        default=None,
        parse=gigabytes,
        metavar="GB",
    ),
    "launch_timeout": Option(
        help="maximum seconds of one launch, or of one step of a reference; a collective may take half of that"
        " (default: 600)",
        default=600.0,
        parse=_seconds,
        metavar="SECONDS",
    ),
    "run_timeout": Option(
        help="maximum seconds of all launches together (default: no limit)",
        default=None,
        parse=_seconds,
        metavar="SECONDS",
    ),
    "results": Option(
        help="also write the record of each measured case to this folder, as JSON",
        default=None,
        parse=_path,
        metavar="DIR",
    ),
    "history": Option(
        help="folder that keeps all runs, to find drift that a single night cannot show; none keeps nothing"
        " (default: pytest-trainbench/history in the user's data folder)",
        default=default_folder(),
        parse=_history,
        metavar="DIR",
    ),
    "cost": Option(
        help="also show the money and energy of each case, and the best choice among cases of the same work",
        default=False,
        parse=_switch,
    ),
    "price": Option(
        help="price per device and hour, for example 2.5USD (default: from the hardware table, with date and source)",
        default=None,
        parse=price,
        metavar="PRICE",
    ),
    "task_samples": Option(
        help="like --cost, and also show the hours, money and energy of a task of this many samples",
        default=None,
        parse=_count,
        metavar="N",
    ),
    "report_md": Option(
        help="also append the report to this file as Markdown (for $GITHUB_STEP_SUMMARY)",
        default=None,
        parse=_path,
        metavar="FILE",
    ),
    "report_html": Option(
        help="also write the report to this file as a web page with pictures; it opens offline",
        default=None,
        parse=_path,
        metavar="FILE",
    ),
}


PRELOAD = "torch._dynamo"
"""Preloaded unless the ini file names other modules. Its import took 4 of the 5 s of a launch on two cores."""

ONLY_INI = {
    "preload": "modules that the fork server imports before it starts ranks, separated by spaces (default:"
    " torch._dynamo, which DDP and every optimizer import)",
    "project": "name of this project in the history (default: from its git remote, else from its folder)",
}
"""Settings that only the ini file has, because they describe the project. Each is a text, empty by default."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The value of each setting. :data:`OPTIONS` explains them."""

    hw: str
    save_baseline: bool
    add: bool
    missing: bool
    stale: bool
    calibrate: bool
    against: str | None
    launches: int
    stored_launches: int
    """``launches`` for a measurement that is stored, or that stands for a stored one (``--calibrate``)."""
    confirm: int
    night_error: float
    floor: float | None
    fail_on_improvement: bool
    unjudged_share: float
    stale_days: int
    baseline_dir: Path
    devices: int | None
    nodes: int
    node_port: int
    node_host: str
    memory_cap: float | None
    launch_timeout: float
    run_timeout: float | None
    results: Path | None
    history: Path | None
    cost: bool
    price: Price | None
    task_samples: int | None
    report_md: Path | None
    report_html: Path | None
    preload: str
    project: str
    """The project's name in the history, from the ini file; else empty."""
    ci: bool
    """Whether ``CI`` is set. A row without a baseline then fails, because nobody reads warnings in CI."""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read(
    command_line: Mapping[str, Any], environment: Mapping[str, str], ini: Mapping[str, str], root: Path
) -> Settings:
    """Settings from their sources. A missing value is ``None`` in ``command_line``, and absent or empty in the other
    sources.

    Raises ``ValueError`` for an invalid value. The sentence names the source of the value.
    """
    values: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        sources = {
            flag(name): command_line.get(name),
            f"TRAINBENCH_{name.upper()}": environment.get(f"TRAINBENCH_{name.upper()}") or None,
            f"trainbench_{name} in the ini file": ini.get(name) or None,
        }
        found = ((source, value) for source, value in sources.items() if value is not None)
        source, given = next(found, ("", None))
        try:
            values[name] = option.parse(str(given)) if given is not None else option.default
        except ValueError as error:
            raise ValueError(f"{source}={given} cannot be used: {error}") from None
        if isinstance(values[name], Path):
            # A path in the ini file is relative to the root. Other paths are relative to the current folder.
            values[name] = (root if source in ("", f"trainbench_{name} in the ini file") else Path.cwd()) / values[name]
    stored_launches = values["launches"] or STORED_LAUNCHES
    if values["launches"] is None:
        values["launches"] = stored_launches if values["save_baseline"] else LAUNCHES
    if values["missing"] and values["stale"]:
        raise ValueError("--missing runs cases without a baseline, and --stale runs cases with one: leave one out")
    if command_line.get("add") and not values["save_baseline"]:
        raise ValueError("--add adds launches to stored baselines: use it with --save-baseline")
    if values["calibrate"] and values["save_baseline"]:
        raise ValueError("--calibrate plants slowdowns and cannot store baselines: leave out --save-baseline")
    if values["against"] is not None:
        if values["nodes"] > 1:
            raise ValueError("--against starts both sides on this machine: leave out --nodes")
        for other in ("save_baseline", "missing", "stale", "calibrate"):
            if values[other]:
                raise ValueError(f"--against compares two sides of this run with each other: leave out {flag(other)}")
        if values["launches"] < 2:
            raise ValueError("--against needs two launches of each side to measure their noise: use --launches 2")
    ci = environment.get("CI", "").lower() not in ("", "0", "false")
    values |= {name: ini.get(name, "") for name in ONLY_INI}
    values["preload"] = values["preload"] or PRELOAD
    return Settings(**values, stored_launches=stored_launches, ci=ci)
