"""The environment of a measurement: facts that must match to compare records, and facts that may explain a change."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.resolve import Hardware

Value = str | int | float | bool
"""The value of a fact: a JSON scalar."""

Difference = tuple[str, Value | None, Value | None]
"""Name, old value and new value of a fact; ``None`` if that side lacks the fact."""

DISTRIBUTIONS = (
    "triton",
    "deepspeed",
    "fairscale",
    "transformers",
    "megatron-core",
    "transformer-engine",
    "flash-attn",
    "apex",
    "accelerate",
    "torchao",
    "onnxruntime-training",
    "onnxruntime-gpu",
    "onnxruntime",
    "onnx",
    "onnxscript",
    "timm",
    "torchvision",
    "pytest-trainbench",
    "numpy",
)
"""Installed distributions whose version may change a measurement, the most likely cause first."""

TELLING = ("torch", "cuda", "rocm", "driver", "nccl", "cudnn", *DISTRIBUTIONS[:-1], "commit")
"""Suspects in the order in which reports show them. All others follow, sorted by name."""

VARIABLES = (
    "CUBLAS_",
    "CUDA_",
    "DS_",
    "GLOO_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCH_",
)
"""Name prefixes of environment variables that may change a measurement."""

PRIVATE = ("CUDA_VISIBLE_DEVICES", "COMM_ID", "HOSTID", "KEY", "PASSWORD", "SECRET", "TOKEN")
"""Name suffixes of environment variables that identify a machine or hold a secret. They are left out."""

MAX_NVLINKS = 36
"""The most NVLinks of a device, in any generation so far."""

PCIE_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names in ``nvidia-smi topo -m`` by ``NVML_TOPOLOGY_*`` level, nearest first."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Facts about one run, as JSON-able data. A fact that cannot be read is absent, never guessed.

    must_match:
        ``device``; ``link`` between the devices (``NVLink ×18 all to all``, ``PCIe SYS``, ``none``); ``power_cap_w``;
        and ``devices_a_node`` for a case on several nodes. The slowest device or pair counts. Records that differ here
        are incomparable.
    suspects:
        Facts that may differ. Reports list the differences if a metric changed.
    machine:
        Id of the machine: eight hex digits of a hash, which reveal nothing about it. The hash is that of its GPUs'
        UUIDs, else of ``/etc/machine-id``, else of its host name. Empty if the machine has none of these.

    Raises ``ValueError`` for a fact that is no JSON scalar, and for another form of ``machine``.
    """

    must_match: Mapping[str, Value]
    suspects: Mapping[str, Value]
    machine: str = ""

    def __post_init__(self) -> None:
        for facts in (self.must_match, self.suspects):
            for name, value in facts.items():
                if not isinstance(value, Value):
                    raise ValueError(f"fact {name} must be text, a number, true or false, not {value!r}")
        if self.machine and (len(self.machine) != 8 or set(self.machine) - set("0123456789abcdef")):
            raise ValueError(f"machine must be eight hex digits, not {self.machine!r}")

    def to_json(self) -> dict[str, Any]:
        return {
            "must_match": dict(self.must_match),
            "suspects": dict(self.suspects),
            "machine": self.machine,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        return cls(**data)


def capture(
    hardware: Hardware,
    root: Path,
    *,
    nvml: Any = None,
    environ: Mapping[str, str] = os.environ,
    torch: Any = None,
    etc: Path = Path("/etc"),
) -> Environment:
    """The environment of this process, on ``hardware``, with the commit of the repository at ``root``.

    Imports torch if it is installed, and creates no CUDA context. The other arguments are for tests.
    """
    suspects: dict[str, Value | None] = {**_torch_versions(torch), **_distributions()}
    must_match: dict[str, Value | None] = {"device": hardware.device_name}
    uuids: tuple[str, ...] = ()
    if hardware.uuids:
        nvml = nvml if nvml is not None else importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            found = [_ask(nvml, "nvmlDeviceGetHandleByUUID", uuid) for uuid in hardware.uuids]
            handles = [handle for handle in found if handle is not None]
            must_match |= {"link": _link(nvml, handles), "power_cap_w": _power_cap_w(nvml, handles)}
            suspects |= {"driver": _ask(nvml, "nvmlSystemGetDriverVersion"), **_clocks(nvml, handles)}
            uuids = _all_uuids(nvml)
        finally:
            nvml.nvmlShutdown()
    suspects |= {
        "commit": _commit(root) or environ.get("GITHUB_SHA", "")[:12] or None,
        "python": platform.python_version(),
        "kernel": platform.release(),
        **_variables(environ),
    }
    return Environment(
        must_match={name: value for name, value in must_match.items() if value is not None},
        suspects={name: value for name, value in suspects.items() if value is not None},
        machine=_machine(uuids, etc),
    )


def mismatches(old: Environment, new: Environment, *, devices: int) -> list[Difference]:
    """The facts that make two records incomparable; empty if they compare.

    ``devices`` is the number of devices that the case drives. A single device uses no link, so ``link`` may differ.
    """
    names = [name for name in ("device", "link", "power_cap_w") if name != "link" or devices > 1]
    before, now = ({"nodes": nodes(one, devices)} for one in (old, new))
    return _changed(old.must_match, new.must_match, names) + _changed(before, now, ["nodes"])


def nodes(environment: Environment, devices: int) -> int:
    """The number of nodes of a case that drives ``devices`` devices in all."""
    return math.ceil(devices / int(environment.must_match.get("devices_a_node", devices)))


def differences(old: Environment, new: Environment) -> list[Difference]:
    """Suspects that differ, in the order of :data:`TELLING`. The machine comes last, if it differs."""
    names = sorted({*old.suspects, *new.suspects} - set(TELLING))
    changed = _changed(old.suspects, new.suspects, [*TELLING, *names])
    return changed + _changed({"machine": old.machine}, {"machine": new.machine}, ["machine"])


def _changed(old: Mapping[str, Value], new: Mapping[str, Value], names: Iterable[str]) -> list[Difference]:
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """NVML's answer; ``None`` if this driver or device does not support the function."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _link(nvml: Any, handles: list[Any]) -> str | None:
    """The link between the devices, named after the slowest pair; ``None`` if NVML does not say."""
    if len(handles) == 1:
        return "none"
    pairs = list(combinations(handles, 2))
    joined = [_ask(nvml, "nvmlDeviceGetP2PStatus", *pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK) for pair in pairs]
    if not pairs or None in joined:
        return None
    direct = joined.count(nvml.NVML_P2P_STATUS_OK)
    if direct:
        width = min(_active_nvlinks(nvml, handle) for handle in handles)
        return f"NVLink ×{width} " + ("all to all" if direct == len(pairs) else f"in {direct} of {len(pairs)} pairs")
    levels = [_ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair) for pair in pairs]
    return None if None in levels else f"PCIe {PCIE_LEVELS[max(levels)]}"


def _active_nvlinks(nvml: Any, handle: Any) -> int:
    return sum(bool(_ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)) for link in range(MAX_NVLINKS))


def _lowest(nvml: Any, handles: list[Any], function: str, *arguments: Any) -> int | None:
    """The lowest of the devices' answers, because a step waits for its slowest rank. ``None`` if one is missing."""
    values = [_ask(nvml, function, handle, *arguments) for handle in handles]
    return None if not values or None in values else min(values)


def _power_cap_w(nvml: Any, handles: list[Any]) -> int | None:
    milliwatts = _lowest(nvml, handles, "nvmlDeviceGetEnforcedPowerLimit")
    return None if milliwatts is None else round(milliwatts / 1000)


def _clocks(nvml: Any, handles: list[Any]) -> dict[str, Value | None]:
    """Clocks in MHz, and whether ECC is on, which costs memory bandwidth on some devices."""
    ecc = [_ask(nvml, "nvmlDeviceGetEccMode", handle) for handle in handles]
    application, maximum = "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetMaxClockInfo"
    return {
        "application_sm_mhz": _lowest(nvml, handles, application, nvml.NVML_CLOCK_SM),
        "application_memory_mhz": _lowest(nvml, handles, application, nvml.NVML_CLOCK_MEM),
        "max_sm_mhz": _lowest(nvml, handles, maximum, nvml.NVML_CLOCK_SM),
        "max_memory_mhz": _lowest(nvml, handles, maximum, nvml.NVML_CLOCK_MEM),
        "ecc": None if not ecc or None in ecc else any(current for current, _pending in ecc),
    }


def _all_uuids(nvml: Any) -> tuple[str, ...]:
    """UUIDs of all devices of the machine, used or not. So the machine's id does not depend on the devices used."""
    count = _ask(nvml, "nvmlDeviceGetCount") or 0
    handles = [_ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    return tuple(uuid for handle in handles if handle and (uuid := _ask(nvml, "nvmlDeviceGetUUID", handle)))


def _torch_versions(torch: Any) -> dict[str, Value | None]:
    """Versions of torch and of the libraries it was built with. Reading them creates no CUDA context."""
    if torch is None:
        try:
            torch = importlib.import_module("torch")
        except ImportError:
            return {}
    nccl = None
    with suppress(AttributeError):  # torch was built without NCCL
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": nccl,
    }


def _distributions() -> dict[str, Value]:
    versions: dict[str, Value] = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit(root: Path) -> str | None:
    """Abbreviated commit of the repository at ``root``; ``+dirty`` follows if files differ from the commit."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(root), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+dirty" if commit and git("status", "--porcelain") else commit


def _variables(environ: Mapping[str, str]) -> dict[str, Value]:
    """Environment variables that may change a measurement. Only the last part of a path is kept, because the rest may
    identify the machine."""
    return {
        name: Path(value).name if "/" in value else value
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLES) and not name.endswith(PRIVATE)
    }


def _machine(uuids: tuple[str, ...], etc: Path) -> str:
    if uuids:
        return digest(uuids)
    identity = ""
    with suppress(OSError):
        identity = (etc / "machine-id").read_text(encoding="utf-8").strip()
    if identity in ("", "uninitialized"):  # in images of containers, and before a machine's first start
        identity = platform.node()
        if identity.partition(".")[0] == "localhost":
            return ""
    return digest([identity]) if identity else ""


def digest(names: Iterable[str]) -> str:
    """Eight hex digits of a hash of the names. Their order does not matter, and the digits do not reveal them."""
    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:8]


def fact(value: object) -> str:
    """A fact's value as text; ``not known`` if there is none."""
    return "not known" if value is None else str(value)
