"""An environment separates facts that must match from suspects, and records nothing private."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_trainbench.hardware.catalog import TABLE
from pytest_trainbench.hardware.environment import Environment, capture, differences, mismatches
from pytest_trainbench.hardware.resolve import Hardware

CPU = Hardware(id="cpu-amd-epyc-2c", kind="cpu", device_name="AMD EPYC", count=2)

TORCH = SimpleNamespace(
    __version__="2.13.0+cu130",
    version=SimpleNamespace(cuda="13.0", hip=None),
    backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91300)),
    cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 3))),
)


class Failure(Exception):
    pass


@dataclass
class FakeNvml:
    """The part of ``pynvml`` that an environment uses: ``count`` devices, all linked in the same way."""

    count: int = 4
    nvlinks: int = 18
    apart: tuple[tuple[int, int], ...] = ()
    """Pairs without NVLink."""
    level: int = 10
    silent: tuple[str, ...] = ()
    """Functions that this driver does not support."""
    power_mw: Mapping[int, int] = field(default_factory=dict)

    NVMLError = Failure
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvmlDevice") and name in object.__getattribute__(self, "silent"):

            def refuse(*_: object) -> None:
                raise Failure("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetP2PStatus(self, one: str, other: str, index: int) -> int:
        pair = int(one[-1]), int(other[-1])
        return 0 if self.nvlinks and pair not in self.apart else 3

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        if link >= self.nvlinks:
            raise Failure("Invalid Argument")
        return 1

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, other: str) -> int:
        return self.level

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return self.power_mw.get(int(handle[-1]), 700_000)

    def nvmlDeviceGetApplicationsClock(self, handle: str, clock: int) -> int:
        return {1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return {1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetEccMode(self, handle: str) -> list[int]:
        return [1, 1]


def h200(count: int) -> Hardware:
    return Hardware(
        id="h200-sxm-141gb",
        kind="cuda",
        device_name="NVIDIA H200",
        count=count,
        accelerator=TABLE["h200-sxm-141gb"],
        uuids=tuple(f"GPU-{index}" for index in range(count)),
    )


def on_gpus(tmp_path: Path, nvml: FakeNvml, count: int = 4, environ: Mapping[str, str] | None = None) -> Environment:
    return capture(h200(count), tmp_path, nvml=nvml, environ=environ or {}, torch=TORCH, etc=tmp_path)


def test_an_environment_of_four_gpus_is_captured(tmp_path: Path) -> None:
    environment = on_gpus(tmp_path, FakeNvml(), environ={"NCCL_ALGO": "Ring", "HOME": "/home/me"})
    assert environment.must_match == {
        "device": "NVIDIA H200",
        "link": "NVLink ×18 all to all",
        "power_cap_w": 700,
    }
    expected = {
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "cudnn": 91300,
        "nccl": "2.28.3",
        "driver": "580.65.06",
        "application_sm_mhz": 1980,
        "application_memory_mhz": 3201,
        "max_sm_mhz": 1980,
        "max_memory_mhz": 3201,
        "ecc": True,
        "NCCL_ALGO": "Ring",
    }
    assert {name: environment.suspects[name] for name in expected} == expected
    assert not {"rocm", "commit", "HOME"} & set(environment.suspects)


@pytest.mark.parametrize(
    ("nvml", "count", "link"),
    [
        (FakeNvml(), 1, "none"),
        (FakeNvml(nvlinks=6, apart=((0, 3), (1, 2))), 4, "NVLink ×6 in 4 of 6 pairs"),
        (FakeNvml(nvlinks=0, level=0), 2, "PCIe PIX"),
        (FakeNvml(nvlinks=0, level=50), 2, "PCIe SYS"),
        (FakeNvml(nvlinks=0, silent=("nvmlDeviceGetTopologyCommonAncestor",)), 2, None),
        (FakeNvml(silent=("nvmlDeviceGetP2PStatus",)), 2, None),
    ],
)
def test_the_link_is_of_the_worst_pair(tmp_path: Path, nvml: FakeNvml, count: int, link: str | None) -> None:
    assert on_gpus(tmp_path, nvml, count).must_match.get("link") == link


def test_the_power_cap_is_the_lowest_or_absent(tmp_path: Path) -> None:
    assert on_gpus(tmp_path, FakeNvml(power_mw={2: 500_000})).must_match["power_cap_w"] == 500
    silent = on_gpus(tmp_path, FakeNvml(silent=("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEccMode")))
    assert "power_cap_w" not in silent.must_match
    assert "ecc" not in silent.suspects


def test_a_machine_stays_the_same_when_fewer_of_its_devices_are_used(tmp_path: Path) -> None:
    two, four, other = (on_gpus(tmp_path, FakeNvml(count=n), used) for n, used in ((4, 2), (4, 4), (8, 4)))
    assert two.machine == four.machine != other.machine


def test_a_machine_without_gpus_is_identified_by_its_machine_id(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("4d1b\n")
    cpu = capture(CPU, tmp_path, environ={}, torch=TORCH, etc=tmp_path)
    assert cpu.must_match == {"device": "AMD EPYC"}
    assert len(cpu.machine) == 8 and "4d1b" not in cpu.machine


@pytest.mark.parametrize("unset", [None, "", "uninitialized\n"])
def test_a_machine_without_a_machine_id_is_identified_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unset: str | None
) -> None:
    if unset is not None:
        (tmp_path / "machine-id").write_text(unset)

    def named(name: str) -> str:
        monkeypatch.setattr("platform.node", lambda: name)
        return capture(CPU, tmp_path, environ={}, torch=TORCH, etc=tmp_path).machine

    assert named("bench-1") == named("bench-1") != named("bench-2")
    assert len(named("bench-1")) == 8
    assert [named(name) for name in ("", "localhost", "localhost.localdomain")] == [""] * 3, "no name of its own"


def test_recorded_variables_contain_no_paths_devices_or_secrets(tmp_path: Path) -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "GPU-0",
        "NCCL_HOSTID": "node7",
        "TORCH_HUB_TOKEN": "s3cret",
        "CUDA_HOME": "/home/me/cuda-13.0",
        "OMP_NUM_THREADS": "4",
        "PATH": "/bin",
    }
    suspects = on_gpus(tmp_path, FakeNvml(), environ=environ).suspects
    assert {name: suspects[name] for name in suspects if name.isupper()} == {
        "CUDA_HOME": "cuda-13.0",
        "OMP_NUM_THREADS": "4",
    }


def test_the_commit_of_a_changed_working_tree_is_marked_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "x")
    clean = capture(CPU, tmp_path, environ={}, torch=TORCH, etc=tmp_path).suspects["commit"]
    (tmp_path / "new").touch()
    dirty = capture(CPU, tmp_path, environ={}, torch=TORCH, etc=tmp_path).suspects["commit"]
    assert isinstance(clean, str) and len(clean) == 12
    assert dirty == f"{clean}+dirty"


def test_an_environment_survives_json(tmp_path: Path) -> None:
    environment = on_gpus(tmp_path, FakeNvml())
    assert Environment.from_json(json.loads(json.dumps(environment.to_json()))) == environment


OLD = Environment(
    must_match={"device": "NVIDIA H200", "link": "NVLink ×18 all to all", "power_cap_w": 700},
    suspects={
        "torch": "2.12",
        "driver": "570",
        "kernel": "6.8",
        "commit": "a",
        "triton": "3.5",
        "NCCL_ALGO": "Tree",
    },
    machine="00000000",
)


def test_the_most_telling_differences_come_first() -> None:
    new = replace(
        OLD,
        suspects={
            "torch": "2.13",
            "driver": "580",
            "kernel": "6.9",
            "commit": "b",
            "triton": "3.5",
            "cuda": "13.0",
        },
        machine="11111111",
    )
    assert differences(OLD, new) == [
        ("torch", "2.12", "2.13"),
        ("cuda", None, "13.0"),
        ("driver", "570", "580"),
        ("commit", "a", "b"),
        ("NCCL_ALGO", "Tree", None),
        ("kernel", "6.8", "6.9"),
        ("machine", "00000000", "11111111"),
    ]
    assert differences(OLD, OLD) == []


def test_the_link_of_a_single_rank_is_no_mismatch() -> None:
    new = replace(OLD, must_match={**OLD.must_match, "link": "none", "power_cap_w": 500})
    assert mismatches(OLD, new, devices=1) == [("power_cap_w", 700, 500)]
    assert mismatches(OLD, new, devices=2) == [
        ("link", "NVLink ×18 all to all", "none"),
        ("power_cap_w", 700, 500),
    ]
    assert mismatches(OLD, OLD, devices=4) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suspects": {"x": None}}, "fact x must be text, a number, true or false, not None"),
        ({"must_match": {"x": ["y"]}}, "fact x must be text, a number, true or false, not ['y']"),
        ({"machine": "node7"}, "machine must be eight hex digits, not 'node7'"),
    ],
)
def test_an_environment_refuses_nonsense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(OLD, **change)
    assert str(error.value) == message


def test_reading_torch_creates_no_cuda_context(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    environment = capture(CPU, tmp_path, environ={}, etc=tmp_path)
    assert environment.suspects["torch"] == torch.__version__
    assert not torch.cuda.is_initialized()
