"""Devices are found in CUDA's order and selection, without CUDA and without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_trainbench.hardware.detect import Devices, find
from pytest_trainbench.hardware.resolve import Found, HardwareNotFound, resolve


class Failure(Exception):
    pass


class LibraryNotFound(Failure):
    pass


@dataclass
class Gpu:
    name: str = "NVIDIA H200"
    uuid: str = "GPU-a"
    mib: int = 143771
    capability: tuple[int, int] | None = (9, 0)
    mig: bool | None = False
    """``None`` if the device does not support MIG."""


@dataclass
class FakeNvml:
    """The part of ``pynvml`` that detection uses. A device is its own handle."""

    gpus: list[Gpu] = field(default_factory=list)
    instances: list[Gpu] = field(default_factory=list)
    failure: Failure | None = None
    open: int = 0

    NVMLError = Failure
    NVMLError_LibraryNotFound = LibraryNotFound

    def nvmlInit(self) -> None:
        if self.failure:
            raise self.failure
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        for gpu in self.instances:
            if gpu.uuid == uuid:
                return gpu
        raise Failure("Not Found")

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.mib * 2**20)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Gpu) -> tuple[int, int]:
        if gpu.capability is None:
            raise Failure("Not Supported")
        return gpu.capability

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[bool]:
        if gpu.mig is None:
            raise Failure("Not Supported")
        return [gpu.mig, gpu.mig]


def never() -> Devices:
    raise AssertionError("torch was asked without need")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\n")
    return tmp_path


def names_of(value: str | None, gpus: list[Gpu], **environ: str) -> list[str]:
    """UUIDs found with ``CUDA_VISIBLE_DEVICES=value``, without their prefix."""
    if value is not None:
        environ["CUDA_VISIBLE_DEVICES"] = value
    nvml = FakeNvml(gpus)
    uuids = find(nvml=nvml, environ=environ, probe=never, root=Path("/nonexistent")).uuids
    assert nvml.open == 0
    return [uuid.removeprefix("GPU-") for uuid in uuids]


FOUR = [Gpu(uuid=f"GPU-{letter}") for letter in ("aa", "ab", "c", "d")]


def test_nvidia_devices_are_found_through_nvml(root: Path) -> None:
    found = find(nvml=FakeNvml([Gpu(), Gpu(uuid="GPU-b")]), environ={}, root=root, probe=never)
    assert found == Found(
        kind="cuda",
        names=("NVIDIA H200", "NVIDIA H200"),
        memory_bytes=(143771 * 2**20, 143771 * 2**20),
        uuids=("GPU-a", "GPU-b"),
        compute_capability=(9, 0),
        cpu_model="AMD EPYC 7763 64-Core Processor",
        cores=len(os.sched_getaffinity(0)),
        cpu_memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["aa", "ab", "c", "d"]),
        ("2", ["c"]),
        ("3,0", ["d", "aa"]),
        (" 1 , 2 ", ["ab", "c"]),
        ("GPU-c", ["c"]),
        ("GPU-ab,GPU-d", ["ab", "d"]),
        ("GPU-a", []),  # two devices have this prefix
        ("0,-1,1", ["aa"]),
        ("0,9,1", ["aa"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_selects_as_cuda_does(value: str | None, expected: list[str]) -> None:
    assert names_of(value, FOUR) == expected


def test_hidden_devices_are_named() -> None:
    found = find(nvml=FakeNvml(FOUR), environ={"CUDA_VISIBLE_DEVICES": ""}, root=Path("/nonexistent"))
    assert (found.kind, found.hidden) == ("cpu", "CUDA_VISIBLE_DEVICES='' hides 4 × NVIDIA H200.")


def test_a_number_on_a_mixed_machine_selects_only_with_pci_bus_order() -> None:
    mixed = [Gpu(uuid="GPU-a"), Gpu(name="Tesla T4", uuid="GPU-b", mib=15360)]
    assert names_of("1", mixed) == ["a", "b"]
    assert names_of("1", mixed, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["b"]
    assert names_of("GPU-b", mixed) == ["b"]
    assert names_of("", mixed, CUDA_DEVICE_ORDER="PCI_BUS_ID") == []


def test_the_lowest_compute_capability_counts() -> None:
    gpus = [Gpu(capability=(9, 0)), Gpu(capability=(8, 6)), Gpu(mig=None, capability=(10, 0))]
    assert find(nvml=FakeNvml(gpus), environ={}).compute_capability == (8, 6)


def test_a_device_in_mig_mode_is_refused() -> None:
    with pytest.raises(HardwareNotFound) as error:
        find(nvml=FakeNvml([Gpu(mig=True)]), environ={})
    assert str(error.value) == (
        "MIG splits NVIDIA H200: name one of its instances by the UUID that nvidia-smi -L prints, "
        "as in CUDA_VISIBLE_DEVICES=MIG-…, or type --hw cpu."
    )


def test_a_mig_instance_is_a_device_of_its_own() -> None:
    instance = Gpu(name="NVIDIA H200 MIG 1g.18gb", uuid="MIG-1", mib=16384, capability=None)
    nvml = FakeNvml([Gpu(mig=True)], instances=[instance])
    found = find(nvml=nvml, environ={"CUDA_VISIBLE_DEVICES": "MIG-1"})
    assert resolve("auto", found).id == "nvidia-h200-mig-1g-18gb-16gb"
    assert not find(nvml=nvml, environ={"CUDA_VISIBLE_DEVICES": "MIG-2"}, root=Path("/nonexistent")).names


@pytest.mark.parametrize(
    ("failure", "hidden"),
    [
        (LibraryNotFound("NVML Shared Library Not Found"), ""),
        (
            Failure("Driver/library version mismatch"),
            "NVIDIA's driver fails: Driver/library version mismatch.",
        ),
    ],
)
def test_without_a_working_nvml_there_are_no_nvidia_devices(root: Path, failure: Failure, hidden: str) -> None:
    found = find("h200", nvml=FakeNvml(failure=failure), environ={}, root=root, probe=never)
    assert (found.kind, found.names, found.hidden) == ("cpu", (), hidden)


def test_torch_is_not_asked_without_a_sign_of_a_device(root: Path) -> None:
    assert find(nvml=FakeNvml(), environ={}, root=root, probe=never).kind == "cpu"


def test_hw_cpu_looks_for_no_device(root: Path) -> None:
    found = find("cpu", nvml=FakeNvml(failure=Failure("asked without need")), environ={}, root=root, probe=never)
    assert (found.kind, found.hidden) == ("cpu", "")


def gaudis() -> Devices:
    return [("hpu", "GAUDI2", 96 * 2**30), ("hpu", "GAUDI2", None)]


@pytest.mark.parametrize("request_", ["gaudi2", "mi300x", "max-1550-64gb"])
def test_torch_is_asked_for_a_device_that_nvml_does_not_report(root: Path, request_: str) -> None:
    found = find(request_, nvml=FakeNvml([Gpu()]), environ={}, root=root, probe=gaudis)
    assert (found.kind, found.names) == ("hpu", ("GAUDI2", "GAUDI2"))
    assert (found.memory_bytes, found.uuids) == ((96 * 2**30, None), ())


@pytest.mark.parametrize("sign", ["kfd", "accel", "accel0", "hl0", "davinci0"])
def test_a_sign_of_another_device_makes_auto_ask_torch(root: Path, sign: str) -> None:
    (root / "dev" / sign).touch()
    assert resolve("auto", find(nvml=FakeNvml(), environ={}, root=root, probe=gaudis)).id == "gaudi2-96gb"
    assert find(nvml=FakeNvml([Gpu()]), environ={}, root=root, probe=never).kind == "cuda"
    assert find("h200", nvml=FakeNvml(), environ={}, root=root, probe=never).kind == "cpu"
    assert find(nvml=FakeNvml(), environ={}, root=root, probe=list).kind == "cpu"
