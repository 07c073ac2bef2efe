"""The hardware table is consistent. ``--hw`` resolves to the device that is here or says what to type instead."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from pytest_trainbench.hardware.catalog import TABLE, Accelerator, Price
from pytest_trainbench.hardware.resolve import (
    MEMORY_TOLERANCE,
    Found,
    Hardware,
    HardwareNotFound,
    families,
    kind_of,
    resolve,
    tidy_cpu_name,
)
from pytest_trainbench.schema.step import DTYPES

MIB = 2**20
CPU = Found(cpu_model="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.00GHz", cores=2, cpu_memory_bytes=64 * 2**30)


def found(*devices: tuple[str, int], kind: str = "cuda", capability: tuple[int, int] | None = (8, 0)) -> Found:
    """A machine with ``devices``, each a name and MiB."""
    return replace(
        CPU,
        kind=kind,
        names=tuple(name for name, _ in devices),
        memory_bytes=tuple(mib * MIB for _, mib in devices),
        uuids=tuple(f"GPU-{index}" for index in range(len(devices))),
        compute_capability=capability,
    )


H200 = ("NVIDIA H200", 143771)
H200X4 = found(*[H200] * 4)


def sentence(request: str, machine: Found) -> str:
    with pytest.raises(HardwareNotFound) as error:
        resolve(request, machine)
    return str(error.value)


# The table


def test_the_table_is_complete_and_keyed_by_its_rows() -> None:
    assert len(TABLE) >= 28
    assert all(key == row.key for key, row in TABLE.items())


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.key)
def test_a_row_is_consistent(row: Accelerator) -> None:
    peak = row.peak_tflops
    assert row.key.endswith(f"-{row.memory_gb}gb")
    assert row.bandwidth_gb_s is not None and row.power_w is not None and row.link is not None
    # Half the width doubles the dense rate. A sparse figure, or one with fp16 accumulation, breaks this ratio.
    if "tf32" in peak:
        assert peak["fp16"] == pytest.approx(2 * peak["tf32"], rel=0.03)
        assert peak["fp32"] <= peak["tf32"]
    # If all figures were sparse, these ratios would hold, but not the ratio to the vector units: before Blackwell,
    # tensor cores have at most 16 times the rate of vector units.
    if "fp16" in peak and row.family != "b200":
        assert peak["fp16"] <= 16.1 * peak["fp32"]
    if "fp16" in peak and "bf16" in peak:
        assert peak["bf16"] == peak["fp16"]
    if "fp8" in peak and row.family != "gaudi3":  # Gaudi 3 multiplies both formats at one rate.
        assert peak["fp8"] == pytest.approx(2 * peak["bf16"], rel=0.03)


def test_two_rows_share_a_name_only_if_their_memory_differs() -> None:
    for one, other in combinations(TABLE.values(), 2):
        if set(one.names) & set(other.names):
            low, high = sorted((one.memory_gb, other.memory_gb))
            assert low * (1 + MEMORY_TOLERANCE) < high * (1 - MEMORY_TOLERANCE), (one.key, other.key)


def test_no_family_is_also_a_key() -> None:
    assert not set(families()) & set(TABLE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "H200"}, "key 'H200' must be lower case, joined by '-', and start with h200-"),
        ({"key": "h100-sxm"}, "key 'h100-sxm' must be lower case, joined by '-', and start with h200-"),
        ({"kind": "cpu"}, "h200-sxm-141gb: kind must be a torch.device type such as cuda, not 'cpu'"),
        ({"names": ()}, "h200-sxm-141gb: at least one exact device name is needed"),
        (
            {"peak_tflops": {"int8": 1}},
            "h200-sxm-141gb: dtype 'int8' is unknown; known: fp32, tf32, bf16, fp16, fp8",
        ),
        ({"peak_tflops": {"bf16": 0}}, "h200-sxm-141gb: a peak of 0 TFLOPS in bf16 is impossible"),
        (
            {"peak_tflops": {"bf16": 989e12}},
            "h200-sxm-141gb: a peak of 989000000000000.0 TFLOPS in bf16 is impossible",
        ),
        ({"memory_gb": 0}, "h200-sxm-141gb: memory_gb must be above 0, or None if unknown, not 0"),
        ({"link": None}, "h200-sxm-141gb: link_gb_s needs the name of the link"),
        ({"source": "hearsay"}, "h200-sxm-141gb: the source must be an https address, not 'hearsay'"),
    ],
)
def test_a_row_refuses_nonsense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(TABLE["h200-sxm-141gb"], **change)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"amount": 0}, "a price must be above 0, not 0"),
        ({"currency": "$"}, "a currency is a code such as USD, not '$'"),
        ({"per": "month"}, "a price is per hour or per device, not per 'month'"),
        ({"date": "last year"}, "the date of a price must look like 2026-09-20 or 2026-09, not 'last year'"),
        ({"source": ""}, "a price needs a source"),
    ],
)
def test_a_price_refuses_nonsense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(Price(amount=1, currency="USD", per="hour", date=None, source="x"), **change)
    assert str(error.value) == message


# Hardware that is here


def test_every_name_of_the_h200_resolves_to_it() -> None:
    expected = Hardware(
        id="h200-sxm-141gb",
        kind="cuda",
        device_name="NVIDIA H200",
        count=4,
        memory_bytes=143771 * MIB,
        accelerator=TABLE["h200-sxm-141gb"],
        compute_capability=(9, 0),
        uuids=("GPU-0", "GPU-1", "GPU-2", "GPU-3"),
    )
    machine = replace(H200X4, compute_capability=(9, 0))
    assert [resolve(word, machine) for word in ("auto", "h200", "h200-sxm-141gb")] == [expected] * 3
    assert (expected.peak_tflops("bf16"), expected.amp, expected.full) == (989.4, "bf16", "tf32")


@pytest.mark.parametrize(
    ("name", "mib", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-pcie-80gb"),
        ("A100-SXM4-40GB", 40537, "a100-sxm-40gb"),  # the name in drivers before 465
    ],
)
def test_a100_resolves_to_the_exact_variant(name: str, mib: int, key: str) -> None:
    assert resolve("a100", found((name, mib))).id == key


@pytest.mark.parametrize(
    ("name", "mib", "key"),
    [
        ("Tesla V100-SXM2-32GB", 32510, "v100-sxm-32gb"),
        ("Tesla T4", 15109, "t4-16gb"),
        ("NVIDIA A10G", 22731, "a10g-24gb"),
        ("NVIDIA L40S", 46068, "l40s-48gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm-80gb"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl-94gb"),
        ("NVIDIA H200 NVL", 143771, "h200-nvl-141gb"),
        ("NVIDIA B200", 183359, "b200-sxm-180gb"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96gb"),
    ],
)
def test_device_names_of_drivers_are_recognised(name: str, mib: int, key: str) -> None:
    assert resolve("auto", found((name, mib))).id == key


def test_devices_of_one_name_are_distinguished_by_memory() -> None:
    name = "Intel(R) Data Center GPU Max 1550"
    assert [resolve("max-1550", found((name, mib), kind="xpu")).id for mib in (65520, 131072)] == [
        "max-1550-64gb",
        "max-1550-128gb",
    ]


def test_volta_has_neither_bf16_nor_tf32() -> None:
    v100 = resolve("v100", found(("Tesla V100-SXM2-16GB", 16160), capability=(7, 0)))
    assert (v100.amp, v100.full, v100.peak_tflops("bf16")) == ("fp16", "fp32", None)


@pytest.mark.parametrize(
    ("hardware", "formats"),
    [
        (resolve("cpu", CPU), {"fp32", "bf16", "fp16"}),
        (resolve("h200", H200X4), set(DTYPES)),
        (resolve("v100", found(("Tesla V100-SXM2-16GB", 16160), capability=(7, 0))), {"fp32", "fp16"}),
        (resolve("auto", found(("NVIDIA RTX A4000", 16376), capability=(8, 6))), {"fp32", "tf32", "bf16", "fp16"}),
        (resolve("auto", found(("NVIDIA RTX 2000 Ada", 16376), capability=(8, 9))), set(DTYPES)),
        (resolve("gaudi2", found(("GAUDI2", 98304), kind="hpu", capability=None)), {"fp32", "bf16", "fp8"}),
        (resolve("auto", found(("A new NPU", 65536), kind="npu", capability=None)), {"fp32", "bf16", "fp16"}),
    ],
    ids=lambda value: value.id if isinstance(value, Hardware) else "",
)
def test_formats_are_of_the_row_or_else_of_the_kind(hardware: Hardware, formats: set[str]) -> None:
    assert {dtype for dtype in DTYPES if hardware.has(dtype)} == formats
    with pytest.raises(ValueError, match="dtype 'int8' is unknown"):
        hardware.has("int8")


def test_an_unknown_device_has_an_id_and_no_peak() -> None:
    machine = found(("NVIDIA RTX A4000", 16376), ("NVIDIA RTX A4000", 16376), capability=(8, 6))
    unknown = resolve("auto", machine)
    assert (unknown.id, unknown.count, unknown.accelerator) == ("nvidia-rtx-a4000-16gb", 2, None)
    assert (unknown.peak_tflops("bf16"), unknown.amp, unknown.full) == (None, "bf16", "tf32")
    assert resolve("nvidia-rtx-a4000-16gb", machine) == unknown
    turing = resolve("auto", found(("Quadro RTX 6000", 24576), capability=(7, 5)))
    assert (turing.amp, turing.full) == ("fp16", "fp32")


def test_a_slice_of_a_known_device_is_an_unknown_device() -> None:
    assert resolve("auto", found(("NVIDIA A100-SXM4-80GB", 9728))).accelerator is None
    assert resolve("auto", found(("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728))).accelerator is None


def test_cpu_is_named_by_model_and_cores() -> None:
    cpu = resolve("cpu", H200X4)
    assert cpu == Hardware(
        id="cpu-intel-xeon-platinum-8481c-2c",
        kind="cpu",
        device_name="Intel Xeon Platinum 8481C",
        count=2,
        memory_bytes=64 * 2**30,
    )
    assert (cpu.amp, cpu.full, cpu.peak_tflops("fp32")) == ("bf16", "fp32", None)
    assert resolve("auto", CPU) == resolve(cpu.id, H200X4) == cpu


@pytest.mark.parametrize(
    ("model", "tidy"),
    [
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("13th Gen Intel(R) Core(TM) i7-13700H", "13th Gen Intel Core i7-13700H"),
        ("aarch64", "aarch64"),
        ("", "unknown"),
    ],
)
def test_cpu_names_are_tidied(model: str, tidy: str) -> None:
    assert tidy_cpu_name(model) == tidy


def test_gaudi_without_a_published_peak_still_has_bf16() -> None:
    gaudi = resolve("gaudi", found(("GAUDI", 32768), kind="hpu", capability=None))
    assert (gaudi.kind, gaudi.amp, gaudi.full, gaudi.peak_tflops("bf16")) == ("hpu", "bf16", "fp32", None)


def test_a_peak_of_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype 'int8' is unknown; known: fp32, tf32, bf16, fp16, fp8"):
        resolve("h200", H200X4).peak_tflops("int8")


# Hardware that is not here


def test_the_error_names_the_family_that_is_here() -> None:
    assert sentence("a100", H200X4) == ("--hw a100: no A100 here; found 4 × NVIDIA H200. Type --hw h200, or --hw auto.")


def test_the_error_names_the_variant_that_is_here() -> None:
    assert sentence("a100-sxm-40gb", found(("NVIDIA A100-SXM4-80GB", 81920))) == (
        "--hw a100-sxm-40gb: no a100-sxm-40gb here; found 1 × NVIDIA A100-SXM4-80GB. "
        "Type --hw a100-sxm-80gb, or --hw auto."
    )


def test_the_error_says_that_only_a_cpu_is_here() -> None:
    assert sentence("h200", CPU) == (
        "--hw h200: no H200 here; found only a CPU (Intel Xeon Platinum 8481C, 2 cores). Type --hw cpu, or --hw auto."
    )


def test_the_error_mentions_hidden_devices() -> None:
    machine = replace(CPU, cores=1, hidden="CUDA_VISIBLE_DEVICES='' hides 4 × NVIDIA H200.")
    assert sentence("h200", machine) == (
        "--hw h200: no H200 here; found only a CPU (Intel Xeon Platinum 8481C, 1 core). "
        "CUDA_VISIBLE_DEVICES='' hides 4 × NVIDIA H200. Type --hw cpu, or --hw auto."
    )


def test_the_error_names_an_unknown_device_that_is_here() -> None:
    assert sentence("a100", found(("NVIDIA RTX A4000", 16376))) == (
        "--hw a100: no A100 here; found 1 × NVIDIA RTX A4000. Type --hw auto."
    )


def test_the_error_names_another_cpu_that_is_here() -> None:
    assert sentence("cpu-amd-epyc-8c", CPU) == (
        "--hw cpu-amd-epyc-8c: this machine is cpu-intel-xeon-platinum-8481c-2c. Type --hw cpu."
    )


@pytest.mark.parametrize("request_", ["auto", "a100"])
def test_the_error_says_how_to_choose_from_mixed_models(request_: str) -> None:
    machine = found(("NVIDIA A100-SXM4-80GB", 81920), ("Tesla T4", 15360), ("NVIDIA A100-SXM4-80GB", 81920))
    assert sentence(request_, machine) == (
        f"--hw {request_}: this machine mixes 2 × NVIDIA A100-SXM4-80GB and 1 × Tesla T4; choose one model "
        "by the UUIDs that nvidia-smi -L prints, as in CUDA_VISIBLE_DEVICES=GPU-0,GPU-2."
    )


def test_the_error_lists_mixed_models_without_the_requested_one() -> None:
    machine = found(("NVIDIA A100-SXM4-80GB", 81920), ("Tesla T4", 15360))
    assert sentence("h200", machine) == (
        "--hw h200: no H200 here; found 1 × NVIDIA A100-SXM4-80GB and 1 × Tesla T4. Type --hw auto."
    )


def test_an_unknown_name_lists_the_closest_first() -> None:
    text = sentence("a1oo", H200X4)
    first, _, rest = text.partition("one of ")
    assert first == "--hw a1oo: this hardware is unknown. Type --hw auto, --hw cpu, or --hw with "
    names = rest.removesuffix(" (docs/add-hardware.md says how to add hardware).").split(", ")
    assert "a100" in names[:3]
    assert sorted(names) == sorted(families())


# Without a device


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ("cpu", "cpu"),
        ("cpu-amd-epyc-2c", "cpu"),
        ("a100", "cuda"),
        ("mi300x", "cuda"),
        ("gaudi2-96gb", "hpu"),
    ],
)
def test_the_kind_of_a_named_device_needs_no_device(request_: str, kind: str) -> None:
    assert kind_of(request_) == kind


def test_the_kind_of_auto_needs_a_device() -> None:
    with pytest.raises(HardwareNotFound) as error:
        kind_of("auto")
    assert str(error.value) == "--hw auto depends on the devices here. Name the hardware, as in --hw a100 or --hw cpu."
    with pytest.raises(HardwareNotFound, match="this hardware is unknown"):
        kind_of("a1oo")


@pytest.mark.parametrize(
    "change", [{"id": "H 200"}, {"count": 0}, {"kind": "cpu"}], ids=lambda change: next(iter(change))
)
def test_hardware_refuses_nonsense(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(resolve("h200", H200X4), **change)


@pytest.mark.parametrize("change", [{"kind": "cuda"}, {"names": ("x",)}, {"memory_bytes": (1,)}, {"cores": 0}], ids=str)
def test_found_refuses_nonsense(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(CPU, **change)


def test_importing_needs_no_torch() -> None:
    modules = (
        "pytest_trainbench.hardware.resolve, pytest_trainbench.hardware.detect, pytest_trainbench.hardware.environment"
    )
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules or 'pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
