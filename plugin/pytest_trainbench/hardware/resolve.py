"""Find the hardware that ``--hw`` names among the devices found.

This module reads no hardware. :mod:`pytest_trainbench.hardware.detect` does, and returns a :class:`Found`.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass, field

from pytest_trainbench.hardware.catalog import ID, TABLE, Accelerator
from pytest_trainbench.schema.step import DTYPES

NVIDIA_SINCE = {"fp32": (0, 0), "fp16": (5, 3), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
"""The lowest compute capability that supports each format. Source: CUDA C++ Programming Guide, "Arithmetic
Instructions" and "Warp Matrix Functions"."""

MEMORY_TOLERANCE = 0.12
"""Allowed difference between a device's memory and its row's, as a fraction. Drivers report up to 8 % less than the
product's name (ECC, reserved memory). Devices that share a name differ by a factor of two."""


class HardwareNotFound(ValueError):
    """Raised if the requested hardware is missing or unknown. The message says what to type instead."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The machine's CPU and its accelerators of one kind. Without accelerators ``names`` is empty.

    names, memory_bytes, uuids:
        One entry per visible device. A memory is ``None`` if the driver does not report it. ``uuids`` is empty for
        devices that NVML does not report.
    compute_capability:
        The lowest of all NVIDIA devices.
    cores:
        Number of CPU cores that this process may use.
    hidden:
        One sentence about devices that exist but cannot be used, for messages.
    """

    kind: str = "cpu"
    names: tuple[str, ...] = ()
    memory_bytes: tuple[int | None, ...] = ()
    uuids: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    cpu_model: str
    cores: int
    cpu_memory_bytes: int | None = None
    hidden: str = ""

    def __post_init__(self) -> None:
        if (self.kind == "cpu") != (not self.names):
            raise ValueError(f"found {len(self.names)} accelerators of kind {self.kind!r}")
        if len(self.memory_bytes) != len(self.names) or len(self.uuids) not in (0, len(self.names)):
            counts = len(self.names), len(self.memory_bytes), len(self.uuids)
            raise ValueError("{} devices with {} memories and {} UUIDs".format(*counts))
        if self.cores < 1:
            raise ValueError(f"a CPU has at least one core, not {self.cores!r}")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware of a run.

    id:
        The name of the folder of its baselines. It is the key of the row in the table. A device without a row has its
        name and memory as id, a CPU ``cpu-<model>-<cores>c``.
    count:
        Number of devices that may be used; on a CPU, the number of cores.
    memory_bytes:
        Memory of the device that has least; on a CPU, of the machine. ``None`` if unknown.
    accelerator:
        The row in the table; ``None`` for a CPU and for a device without a row.
    """

    id: str
    kind: str
    device_name: str
    count: int
    memory_bytes: int | None = None
    accelerator: Accelerator | None = None
    compute_capability: tuple[int, int] | None = None
    uuids: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(ID, self.id):
            raise ValueError(f"a hardware id must be lower case, joined by '-', not {self.id!r}")
        if self.count < 1:
            raise ValueError(f"{self.id}: at least one device is needed, not {self.count!r}")
        if self.accelerator is not None and self.accelerator.kind != self.kind:
            raise ValueError(f"{self.id}: a device of kind {self.kind} cannot be a {self.accelerator.key}")

    def peak_tflops(self, dtype: str) -> float | None:
        """Dense peak of one device in TFLOPS; ``None`` if no source gives it.

        Raises ``ValueError`` for a dtype that is not in :data:`~pytest_trainbench.schema.step.DTYPES`.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
        return None if self.accelerator is None else self.accelerator.peak_tflops.get(dtype)

    @property
    def amp(self) -> str:
        """The format of mixed precision on this hardware: ``bf16`` if supported, else ``fp16``."""
        return "bf16" if self.has("bf16") else "fp16"

    @property
    def full(self) -> str:
        """The format of single-precision products on this hardware: ``tf32`` if supported, else ``fp32``."""
        return "tf32" if self.has("tf32") else "fp32"

    def has(self, dtype: str) -> bool:
        """Whether the hardware supports matrix products in ``dtype``.

        The row in the table says so. Without a row, the formats that all hardware of this kind supports count. All
        hardware supports fp32, also if no source gives its peak.

        Raises ``ValueError`` for a dtype that is not in :data:`~pytest_trainbench.schema.step.DTYPES`.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
        if self.accelerator is not None and self.accelerator.peak_tflops:
            return dtype == "fp32" or dtype in self.accelerator.peak_tflops
        if self.compute_capability is not None:
            return self.compute_capability >= NVIDIA_SINCE[dtype]
        return dtype in ("fp32", "fp16") or (dtype == "bf16" and self.kind in ("cpu", "hpu", "xpu", "npu"))


def families() -> tuple[str, ...]:
    """Families in the order of the table."""
    return tuple(dict.fromkeys(row.family for row in TABLE.values()))


def rows(request: str) -> tuple[Accelerator, ...]:
    """Rows of the family or the exact key ``request``; empty if there is no such row."""
    return tuple(row for row in TABLE.values() if request in (row.key, row.family))


def kind_of(request: str) -> str:
    """The ``torch.device`` type of ``request``, from the table alone. No device is needed.

    Raises :class:`HardwareNotFound` for an unknown name, and for ``auto``, which depends on the machine's devices.
    """
    if request == "cpu" or request.startswith("cpu-"):
        return "cpu"
    if request == "auto":
        raise HardwareNotFound("--hw auto depends on the devices here. Name the hardware, as in --hw a100 or --hw cpu.")
    named = rows(request)
    if not named:
        raise _unknown(request)
    return named[0].kind


def resolve(request: str, found: Found) -> Hardware:
    """The hardware that ``request`` names on the machine that ``found`` describes.

    ``request`` is one of these:

    * ``auto``: the accelerator, or the CPU if there is no accelerator.
    * ``cpu``.
    * A family, such as ``a100``: the variant that the machine has.
    * The exact key of a row.
    * The ``id`` of the machine's hardware.

    Raises :class:`HardwareNotFound` if the machine does not have it.
    """
    cpu = _cpu(found)
    if request in ("cpu", cpu.id):
        return cpu
    if request.startswith("cpu-"):
        raise HardwareNotFound(f"--hw {request}: this machine is {cpu.id}. Type --hw cpu.")
    here = _accelerators(found)
    if len(here) == 1 and request in ("auto", here[0].id):
        return here[0]
    if not here and request == "auto":
        return cpu
    wanted = rows(request)
    if request != "auto" and not wanted:
        raise _unknown(request, extra=tuple(hardware.id for hardware in here if hardware.accelerator is None))
    if len(here) == 1 and here[0].accelerator in wanted:
        return here[0]
    if len(here) > 1 and (request == "auto" or any(hardware.accelerator in wanted for hardware in here)):
        raise HardwareNotFound(
            f"--hw {request}: this machine mixes {_listed(found)}; choose one model by the UUIDs that "
            f"nvidia-smi -L prints, as in CUDA_VISIBLE_DEVICES={_uuids_of_first(found)}."
        )
    label = request.upper() if request in families() else request
    what = _listed(found) if here else f"only a CPU ({cpu.device_name}, {_cores(cpu.count)})"
    hidden = f" {found.hidden}" if found.hidden else ""
    advice = _advice(wanted, here)
    raise HardwareNotFound(f"--hw {request}: no {label} here; found {what}.{hidden} Type {advice}.")


def tidy_cpu_name(model: str) -> str:
    """A CPU's model without trademarks, clock rate and filler words, such as ``Intel Xeon Platinum 8481C``."""
    model = re.sub(r"\((r|tm|c)\)", " ", model, flags=re.IGNORECASE)
    model = re.sub(r"@.*|\b(cpu|processor|with radeon graphics|\d+-core)\b", " ", model, flags=re.IGNORECASE)
    return " ".join(model.split()) or "unknown"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _cpu(found: Found) -> Hardware:
    model = tidy_cpu_name(found.cpu_model)
    return Hardware(
        id=f"cpu-{_slug(model)}-{found.cores}c",
        kind="cpu",
        device_name=model,
        count=found.cores,
        memory_bytes=found.cpu_memory_bytes,
    )


def _accelerators(found: Found) -> list[Hardware]:
    """One :class:`Hardware` per model found."""
    models: dict[str, list[int]] = {}
    for index, (name, memory_bytes) in enumerate(zip(found.names, found.memory_bytes, strict=True)):
        row = _row(found.kind, name, memory_bytes)
        models.setdefault(_unknown_id(name, memory_bytes) if row is None else row.key, []).append(index)
    return [
        Hardware(
            id=id,
            kind=found.kind,
            device_name=found.names[indices[0]],
            count=len(indices),
            memory_bytes=min((size for i in indices if (size := found.memory_bytes[i])), default=None),
            accelerator=TABLE.get(id),
            compute_capability=found.compute_capability,
            uuids=tuple(found.uuids[i] for i in indices) if found.uuids else (),
        )
        for id, indices in models.items()
    ]


def _row(kind: str, name: str, memory_bytes: int | None) -> Accelerator | None:
    plain = name.removeprefix("NVIDIA ")
    named = [
        row
        for row in TABLE.values()
        if row.kind == kind and any(plain == known.removeprefix("NVIDIA ") for known in row.names)
    ]
    if memory_bytes is not None:
        # GB in a product's name means 2³⁰ bytes.
        named = [row for row in named if abs(memory_bytes / 2**30 / row.memory_gb - 1) <= MEMORY_TOLERANCE]
    return named[0] if len(named) == 1 else None


def _unknown_id(name: str, memory_bytes: int | None) -> str:
    return _slug(name) if memory_bytes is None else f"{_slug(name)}-{round(memory_bytes / 2**30)}gb"


def _listed(found: Found) -> str:
    return " and ".join(f"{count} × {name}" for name, count in Counter(found.names).items())


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _uuids_of_first(found: Found) -> str:
    uuids = [uuid for name, uuid in zip(found.names, found.uuids, strict=False) if name == found.names[0]]
    return ",".join(uuids) or "GPU-…"


def _advice(wanted: tuple[Accelerator, ...], here: list[Hardware]) -> str:
    if not here:
        return "--hw cpu, or --hw auto"
    row = here[0].accelerator
    if row is None or len(here) > 1:
        return "--hw auto"
    # The family is enough, unless the user asked for another variant of it.
    word = row.key if row.family in {other.family for other in wanted} else row.family
    return f"--hw {word}, or --hw auto"


def _unknown(request: str, *, extra: tuple[str, ...] = ()) -> HardwareNotFound:
    known = (*extra, *families())
    near = difflib.get_close_matches(request, (*known, *TABLE), n=len(known), cutoff=0.5)
    closest = list(dict.fromkeys(TABLE[word].family if word in TABLE else word for word in near))
    ordered = [*closest, *(word for word in known if word not in closest)]
    return HardwareNotFound(
        f"--hw {request}: this hardware is unknown. Type --hw auto, --hw cpu, or --hw with one of "
        f"{', '.join(ordered)} (docs/add-hardware.md says how to add hardware)."
    )
