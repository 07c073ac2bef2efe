"""Find the machine's devices without opening them.

NVML lists NVIDIA's devices. It needs no torch and creates no CUDA context. A context in this process would take memory
from the ranks and could not be forked. For other accelerators a short-lived process asks ``torch.accelerator``. That
path follows the documentation and is untested on devices.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_trainbench.hardware.resolve import Found, HardwareNotFound, kind_of, rows

PROBE_TIMEOUT_S = 120
"""Time limit of the process that asks torch. Importing torch from a cold disk takes tens of seconds."""

SIGNS = ("dev/kfd", "dev/accel", "dev/accel[0-9]*", "dev/hl[0-9]*", "dev/davinci[0-9]*", "dev/dri/renderD*")
"""Device files of AMD's, Intel's and Huawei's drivers. They do not prove that there is a device. ``--hw auto`` asks
torch, which takes seconds, only if one of these files exists."""

_PROBE = """
import json, torch
devices = []
if torch.accelerator.is_available():
    kind = torch.accelerator.current_accelerator().type
    module = getattr(torch, kind)
    for index in range(torch.accelerator.device_count()):
        name = getattr(module, "get_device_name", lambda index: kind)(index)
        properties = getattr(module, "get_device_properties", lambda index: None)(index)
        devices.append([kind, name, getattr(properties, "total_memory", None)])
print(json.dumps(devices))
"""

Devices = list[tuple[str, str, int | None]]
"""Kind, name and bytes of memory of each device."""


def find(
    request: str = "auto",
    *,
    nvml: Any = None,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    probe: Callable[[], Devices] | None = None,
) -> Found:
    """The devices that this process may use. ``request`` is the value of ``--hw``, and limits the search.

    Honours ``CUDA_VISIBLE_DEVICES``. If NVML is missing or fails, no NVIDIA device is found. After a failure ``hidden``
    says why. Raises :class:`HardwareNotFound` if MIG splits a visible device, and ``CUDA_VISIBLE_DEVICES`` names none
    of its instances.

    Tests replace ``nvml`` (the module ``pynvml``), ``root`` (the parent of ``dev`` and ``proc``) and ``probe``.
    """
    cpu = Found(
        cpu_model=_cpu_model(root),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_memory_bytes=_cpu_memory_bytes(),
    )
    if _kind(request) == "cpu":
        return cpu
    named, found = rows(request), cpu
    if not named or any(row.nvidia for row in named):
        found = _nvidia(nvml if nvml is not None else _pynvml(), environ, cpu)
        if named or found.names or not _sign(root):
            return found
    devices = (probe or _probe)()
    if not devices:
        return found
    return replace(
        found,
        kind=devices[0][0],
        names=tuple(name for _, name, _ in devices),
        memory_bytes=tuple(memory_bytes for _, _, memory_bytes in devices),
    )


def _kind(request: str) -> str | None:
    try:
        return kind_of(request)
    except HardwareNotFound:  # It may be the id of a device that is not in the table.
        return None


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _nvidia(nvml: Any, environ: Mapping[str, str], cpu: Found) -> Found:
    """``cpu`` with the machine's NVIDIA devices added, or with the reason why none can be used."""
    if nvml is None:
        return cpu
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:  # No driver, as on most machines without NVIDIA devices.
        return cpu
    except nvml.NVMLError as error:
        return replace(cpu, hidden=f"NVIDIA's driver fails: {error}.")
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        visible = _visible(nvml, handles, environ)
        if handles and not visible:
            names = ", ".join(dict.fromkeys(nvml.nvmlDeviceGetName(handle) for handle in handles))
            value = environ["CUDA_VISIBLE_DEVICES"]
            return replace(cpu, hidden=f"CUDA_VISIBLE_DEVICES={value!r} hides {len(handles)} × {names}.")
        if not visible:
            return cpu
        return replace(
            cpu,
            kind="cuda",
            names=tuple(nvml.nvmlDeviceGetName(handle) for handle in visible),
            memory_bytes=tuple(int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in visible),
            uuids=tuple(nvml.nvmlDeviceGetUUID(handle) for handle in visible),
            compute_capability=_capability(nvml, visible),
        )
    except nvml.NVMLError as error:
        return replace(cpu, hidden=f"NVIDIA's driver fails: {error}.")
    finally:
        nvml.nvmlShutdown()


def _visible(nvml: Any, handles: list[Any], environ: Mapping[str, str]) -> list[Any]:
    """Handles of the devices that CUDA makes visible, by its rules for ``CUDA_VISIBLE_DEVICES``."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    words = [word.strip() for word in value.split(",")] if value is not None else []
    # By default CUDA numbers devices by speed, and NVML by PCI bus. So on a machine with several models a number is
    # ambiguous. Then all devices count as visible, and resolve() asks the user to choose by UUID.
    mixed = len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if value is None or (mixed and not by_bus and all(_is_index(word, handles) for word in words)):
        chosen = handles
    else:
        chosen = []
        for word in words:
            handle = _handle(nvml, handles, word)
            if handle is None:  # CUDA ignores all words after the first that names no device.
                break
            chosen.append(handle)
    for handle in chosen:
        if _split_by_mig(nvml, handle):
            raise HardwareNotFound(
                f"MIG splits {nvml.nvmlDeviceGetName(handle)}: name one of its instances by the UUID that "
                "nvidia-smi -L prints, as in CUDA_VISIBLE_DEVICES=MIG-…, or type --hw cpu."
            )
    return chosen


def _is_index(word: str, handles: list[Any]) -> bool:
    return word.isdecimal() and int(word) < len(handles)


def _handle(nvml: Any, handles: list[Any], word: str) -> Any:
    if _is_index(word, handles):
        return handles[int(word)]
    if word.startswith("GPU-"):  # CUDA accepts a prefix of a UUID if it is unique.
        named = [handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(word)]
        return named[0] if len(named) == 1 else None
    if word.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(word)
        except nvml.NVMLError:
            return None
    return None


def _split_by_mig(nvml: Any, handle: Any) -> bool:
    if nvml.nvmlDeviceGetUUID(handle).startswith("MIG-"):
        return False  # An instance has its own name and memory, so it matches no row of the table.
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # The device does not support MIG.
        return False


def _capability(nvml: Any, handles: list[Any]) -> tuple[int, int] | None:
    try:
        return min(tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles)
    except nvml.NVMLError:  # NVML reports no compute capability for a MIG instance.
        return None


def _sign(root: Path) -> bool:
    return sys.platform == "darwin" or any(any(root.glob(sign)) for sign in SIGNS)


def _probe() -> Devices:
    """Devices of ``torch.accelerator``, read in a short-lived process. Empty if torch is missing or fails."""
    command = [sys.executable, "-c", _PROBE]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True).stdout
        devices = json.loads(output.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []
    return [(str(kind), str(name), memory_bytes) for kind, name, memory_bytes in devices]


def _cpu_model(root: Path) -> str:
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cpu_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
