"""The table of accelerators: one row per device, with the sources of its figures. This module reads no hardware."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_trainbench.schema.step import DTYPES

ID = r"[a-z0-9]+(-[a-z0-9]+)*"
"""Regular expression of a hardware id: lower-case words and digits, joined by ``-``."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one device.

    amount, currency:
        The price in ``currency``, an ISO 4217 code.
    per:
        ``hour`` for rent, ``device`` for a purchase.
    date:
        When the price was read or announced (``2026-09-20``, ``2026-03``); ``None`` if unknown.
    source:
        Where the price was published.
    """

    amount: float
    currency: str
    per: str
    date: str | None
    source: str

    def __post_init__(self) -> None:
        if not self.amount > 0:
            raise ValueError(f"a price must be above 0, not {self.amount!r}")
        if not re.fullmatch(r"[A-Z]{3}", self.currency):
            raise ValueError(f"a currency is a code such as USD, not {self.currency!r}")
        if self.per not in ("hour", "device"):
            raise ValueError(f"a price is per hour or per device, not per {self.per!r}")
        if self.date is not None and not re.fullmatch(r"\d{4}(-\d\d){0,2}", self.date):
            raise ValueError(f"the date of a price must look like 2026-09-20 or 2026-09, not {self.date!r}")
        if not self.source:
            raise ValueError("a price needs a source")


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device as PyTorch counts them. An MI250X is two devices; so is a Max 1550 in flat mode.

    key, family:
        ``--hw`` accepts both. A key starts with its family.
    kind:
        The ``torch.device`` type; ``cuda`` for AMD's devices too.
    names:
        Exact names that NVML or ``torch.accelerator`` reports. A leading ``NVIDIA`` is ignored, because older drivers
        leave it out.
    memory_gb:
        Memory as in the product's name. It distinguishes devices that share a name.
    peak_tflops:
        Dense peak by number format of a matrix product's inputs, with accumulation in fp32. Only the formats that the
        device supports. ``fp32`` is full single precision: without tensor cores on NVIDIA, with matrix cores on AMD.
    bandwidth_gb_s, power_w:
        Memory bandwidth in 10⁹ bytes/s. Nominal board power in watts, not the configured power cap.
    link, link_gb_s:
        The fastest link to another device, and its bandwidth per device, both directions together, in 10⁹ bytes/s.
    price:
        ``None`` if no price is known.
    source:
        Where the figures are published: the vendor's page or data sheet, if there is one.

    ``None`` means that no source gives the figure.
    """

    key: str
    family: str
    kind: str
    names: tuple[str, ...]
    memory_gb: int
    peak_tflops: Mapping[str, float]
    bandwidth_gb_s: float | None
    link: str | None
    link_gb_s: float | None
    power_w: int | None
    price: Price | None = None
    source: str

    def __post_init__(self) -> None:
        if not re.fullmatch(ID, self.key) or not self.key.startswith(f"{self.family}-"):
            raise ValueError(f"key {self.key!r} must be lower case, joined by '-', and start with {self.family}-")
        if self.kind in ("", "cpu"):
            raise ValueError(f"{self.key}: kind must be a torch.device type such as cuda, not {self.kind!r}")
        if not self.names or not all(self.names):
            raise ValueError(f"{self.key}: at least one exact device name is needed")
        for dtype, tflops in self.peak_tflops.items():
            if dtype not in DTYPES:
                raise ValueError(f"{self.key}: dtype {dtype!r} is unknown; known: {', '.join(DTYPES)}")
            if not 0 < tflops < 1e5:
                raise ValueError(f"{self.key}: a peak of {tflops!r} TFLOPS in {dtype} is impossible")
        for name in ("memory_gb", "bandwidth_gb_s", "link_gb_s", "power_w"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{self.key}: {name} must be above 0, or None if unknown, not {value!r}")
        if self.link_gb_s is not None and self.link is None:
            raise ValueError(f"{self.key}: link_gb_s needs the name of the link")
        if not self.source.startswith("https://"):
            raise ValueError(f"{self.key}: the source must be an https address, not {self.source!r}")

    @property
    def nvidia(self) -> bool:
        """Whether NVML reports this device."""
        return self.kind == "cuda" and not self.names[0].startswith("AMD ")


# All peaks below are dense. Data sheets print the peak with structured sparsity, which is twice the dense peak.
# All peaks below are for accumulation in fp32, as in training. GeForce cards and the L40 then multiply at half the rate
# of fp16 accumulation.
_NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions"
_IMAGES = "https://images.nvidia.com"
_V100 = f"{_IMAGES}/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_A100_40 = f"{_NVIDIA}/Data-Center/a100/pdf/nvidia-a100-datasheet.pdf"
_A100_80 = f"{_NVIDIA}/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = f"{_IMAGES}/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_ADA_PRO = f"{_IMAGES}/aem-dam/en-zz/Solutions/technologies/NVIDIA-ADA-GPU-PROVIZ-Architecture-Whitepaper_1.1.pdf"
_BLACKWELL_RTX = f"{_IMAGES}/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_RTX_50 = "https://www.nvidia.com/en-us/geforce/news/rtx-50-series-graphics-cards-gpu-laptop-announcements/"
_H100 = "https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_INTEL = "https://www.intel.com/content/www/us/en"
_GAUDI = "https://docs.habana.ai/en/latest/Gaudi_Overview/Gaudi_Architecture.html"
_GAUDI3 = f"{_INTEL}/content-details/817486/intel-gaudi-3-ai-accelerator-white-paper.html"
_MAX = f"{_INTEL}/developer/articles/technical/intel-data-center-gpu-max-series-overview.html"

# Sources of prices.
_LAMBDA = "https://lambda.ai/instances"
_AKASH = "https://akash.network/pricing/gpus/"
_RUNPOD_AUGUST = "https://huggingface.co/datasets/privum/ai-compute-prices"
_RUNPOD_MARCH = "https://deploybase.ai/articles/runpod-gpu-pricing"
_COMPUTEPRICES = "https://computeprices.com/gpus/t4"
_AMD_MAY = "https://www.cliffcenter.com/research/amd-inference-economics"
_LAUNCH = "https://www.tomsguide.com/news/nvidia-geforce-rtx-4090"
_GAUDI3_KIT = (
    "https://y-ic.de/news/intel-officially-launches-gaudi3-ai-chip-slower-than-nvidia-h100,but-at-a-lower-cost.html"
)
_TRAINER_TABLE = "the published table of trainer runs on V100 and A100 that the suite repeats"
_LAYER_TABLE = "the published table of per-layer TFLOPS that the suite repeats (approximate)"


def _rent(amount: float, source: str, date: str | None, currency: str = "USD") -> Price:
    return Price(amount=amount, currency=currency, per="hour", date=date, source=source)


def _buy(amount: float, source: str, date: str | None) -> Price:
    return Price(amount=amount, currency="USD", per="device", date=date, source=source)


# fmt: off
TABLE: dict[str, Accelerator] = {row.key: row for row in (
    # NVIDIA Volta and Turing: tensor cores for fp16 only, no bf16, no tf32.
    Accelerator(
        key="v100-sxm-16gb", family="v100", kind="cuda", memory_gb=16,
        names=("Tesla V100-SXM2-16GB",),
        peak_tflops={"fp32": 15.7, "fp16": 125},
        bandwidth_gb_s=900, link="NVLink 2", link_gb_s=300, power_w=300,
        price=_rent(0.79, _LAMBDA, "2026-09-20"), source=_V100,
    ),
    Accelerator(
        key="v100-sxm-32gb", family="v100", kind="cuda", memory_gb=32,
        names=("Tesla V100-SXM2-32GB",),
        peak_tflops={"fp32": 15.7, "fp16": 125},
        bandwidth_gb_s=900, link="NVLink 2", link_gb_s=300, power_w=300,
        price=_rent(5.3, _TRAINER_TABLE, None, "CNY"), source=_V100,
    ),
    Accelerator(
        key="v100-pcie-16gb", family="v100", kind="cuda", memory_gb=16,
        names=("Tesla V100-PCIE-16GB",),
        peak_tflops={"fp32": 14, "fp16": 112},
        bandwidth_gb_s=900, link="PCIe 3", link_gb_s=32, power_w=250,
        source=_V100,
    ),
    Accelerator(
        key="v100-pcie-32gb", family="v100", kind="cuda", memory_gb=32,
        names=("Tesla V100-PCIE-32GB",),
        peak_tflops={"fp32": 14, "fp16": 112},
        bandwidth_gb_s=900, link="PCIe 3", link_gb_s=32, power_w=250,
        source=_V100,
    ),
    Accelerator(
        key="v100s-pcie-32gb", family="v100s", kind="cuda", memory_gb=32,
        names=("Tesla V100S-PCIE-32GB",),
        peak_tflops={"fp32": 16.4, "fp16": 130},
        bandwidth_gb_s=1134, link="PCIe 3", link_gb_s=32, power_w=250,
        source=_V100,
    ),
    Accelerator(
        key="t4-16gb", family="t4", kind="cuda", memory_gb=16,
        names=("Tesla T4",),
        peak_tflops={"fp32": 8.1, "fp16": 65},
        bandwidth_gb_s=300, link="PCIe 3", link_gb_s=32, power_w=70,
        price=_rent(0.35, _COMPUTEPRICES, "2026-03-31"),
        source=f"{_NVIDIA}/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    # NVIDIA Ampere.
    Accelerator(
        key="a10-24gb", family="a10", kind="cuda", memory_gb=24,
        names=("NVIDIA A10",),
        peak_tflops={"fp32": 31.2, "tf32": 62.5, "bf16": 125, "fp16": 125},
        bandwidth_gb_s=600, link="PCIe 4", link_gb_s=64, power_w=150,
        price=_rent(1.29, _LAMBDA, "2026-09-20"), source=f"{_NVIDIA}/Data-Center/a10/pdf/a10-datasheet.pdf",
    ),
    Accelerator(  # Made for AWS, with little more than half of the A10's tensor-core rate.
        key="a10g-24gb", family="a10g", kind="cuda", memory_gb=24,
        names=("NVIDIA A10G",),
        peak_tflops={"fp32": 31.5, "tf32": 35, "bf16": 70, "fp16": 70},
        bandwidth_gb_s=600, link="PCIe 4", link_gb_s=64, power_w=300,
        source="https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
    ),
    Accelerator(
        key="a30-24gb", family="a30", kind="cuda", memory_gb=24,
        names=("NVIDIA A30",),
        peak_tflops={"fp32": 10.3, "tf32": 82, "bf16": 165, "fp16": 165},
        bandwidth_gb_s=933, link="NVLink 3 bridge", link_gb_s=200, power_w=165,
        source=f"{_NVIDIA}/data-center/products/a30-gpu/pdf/a30-datasheet.pdf",
    ),
    Accelerator(
        key="a40-48gb", family="a40", kind="cuda", memory_gb=48,
        names=("NVIDIA A40",),
        peak_tflops={"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7},
        bandwidth_gb_s=696, link="NVLink 3 bridge", link_gb_s=112.5, power_w=300,
        price=_rent(0.44, _RUNPOD_AUGUST, "2026-08-19"),
        source=f"{_IMAGES}/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf",
    ),
    Accelerator(
        key="a100-pcie-40gb", family="a100", kind="cuda", memory_gb=40,
        names=("NVIDIA A100-PCIE-40GB",),
        peak_tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
        bandwidth_gb_s=1555, link="NVLink 3 bridge", link_gb_s=600, power_w=250,
        price=_rent(9.3, _TRAINER_TABLE, None, "CNY"), source=_A100_40,
    ),
    Accelerator(
        key="a100-pcie-80gb", family="a100", kind="cuda", memory_gb=80,
        names=("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"),
        peak_tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
        bandwidth_gb_s=1935, link="NVLink 3 bridge", link_gb_s=600, power_w=300,
        price=_rent(1.39, _RUNPOD_AUGUST, "2026-08-19"), source=_A100_80,
    ),
    Accelerator(
        key="a100-sxm-40gb", family="a100", kind="cuda", memory_gb=40,
        names=("NVIDIA A100-SXM4-40GB",),
        peak_tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
        bandwidth_gb_s=1555, link="NVLink 3", link_gb_s=600, power_w=400,
        price=_rent(1.99, _LAMBDA, "2026-09-20"), source=_A100_40,
    ),
    Accelerator(
        key="a100-sxm-80gb", family="a100", kind="cuda", memory_gb=80,
        names=("NVIDIA A100-SXM4-80GB",),
        peak_tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
        bandwidth_gb_s=2039, link="NVLink 3", link_gb_s=600, power_w=400,
        price=_rent(2.79, _LAMBDA, "2026-09-20"), source=_A100_80,
    ),
    Accelerator(
        key="a6000-48gb", family="a6000", kind="cuda", memory_gb=48,
        names=("NVIDIA RTX A6000",),
        peak_tflops={"fp32": 38.7, "tf32": 77.4, "bf16": 154.8, "fp16": 154.8},
        bandwidth_gb_s=768, link="NVLink 3 bridge", link_gb_s=112.5, power_w=300,
        price=_rent(1.09, _LAMBDA, "2026-09-20"), source=_GA102,
    ),
    Accelerator(
        key="rtx-3090-24gb", family="rtx-3090", kind="cuda", memory_gb=24,
        names=("NVIDIA GeForce RTX 3090",),
        peak_tflops={"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71},
        bandwidth_gb_s=936, link="NVLink 3 bridge", link_gb_s=112.5, power_w=350,
        price=_buy(1499, _LAUNCH, "2020-09"), source=_GA102,
    ),
    Accelerator(
        key="rtx-3090-ti-24gb", family="rtx-3090-ti", kind="cuda", memory_gb=24,
        names=("NVIDIA GeForce RTX 3090 Ti",),
        peak_tflops={"fp32": 40, "tf32": 40, "bf16": 80, "fp16": 80},
        bandwidth_gb_s=1008, link="NVLink 3 bridge", link_gb_s=112.5, power_w=450,
        price=_buy(1500, _LAYER_TABLE, None), source=_ADA,
    ),
    # NVIDIA Ada.
    Accelerator(
        key="rtx-4090-24gb", family="rtx-4090", kind="cuda", memory_gb=24,
        names=("NVIDIA GeForce RTX 4090",),
        peak_tflops={"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2, "fp8": 330.3},
        bandwidth_gb_s=1008, link="PCIe 4", link_gb_s=64, power_w=450,
        price=_buy(1599, _LAUNCH, "2022-10-12"), source=_ADA,
    ),
    Accelerator(
        key="rtx-6000-ada-48gb", family="rtx-6000-ada", kind="cuda", memory_gb=48,
        names=("NVIDIA RTX 6000 Ada Generation",),
        peak_tflops={"fp32": 91.1, "tf32": 182.1, "bf16": 364.2, "fp16": 364.2, "fp8": 728.5},
        bandwidth_gb_s=960, link="PCIe 4", link_gb_s=64, power_w=300,
        source=_ADA_PRO,
    ),
    Accelerator(
        key="l4-24gb", family="l4", kind="cuda", memory_gb=24,
        names=("NVIDIA L4",),
        peak_tflops={"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242.5},
        bandwidth_gb_s=300, link="PCIe 4", link_gb_s=64, power_w=72,
        price=_rent(0.44, _RUNPOD_MARCH, "2026-03"), source="https://www.nvidia.com/en-us/data-center/l4/",
    ),
    Accelerator(
        key="l40-48gb", family="l40", kind="cuda", memory_gb=48,
        names=("NVIDIA L40",),
        peak_tflops={"fp32": 90.5, "tf32": 90.5, "bf16": 181, "fp16": 181, "fp8": 362},
        bandwidth_gb_s=864, link="PCIe 4", link_gb_s=64, power_w=300,
        price=_rent(0.69, _RUNPOD_MARCH, "2026-03"), source="https://www.nvidia.com/en-us/data-center/l40/",
    ),
    Accelerator(
        key="l40s-48gb", family="l40s", kind="cuda", memory_gb=48,
        names=("NVIDIA L40S",),
        peak_tflops={"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362, "fp8": 733},
        bandwidth_gb_s=864, link="PCIe 4", link_gb_s=64, power_w=350,
        price=_rent(0.79, _RUNPOD_MARCH, "2026-03"), source="https://www.nvidia.com/en-us/data-center/l40s/",
    ),
    # NVIDIA Hopper.
    Accelerator(
        key="h100-sxm-80gb", family="h100", kind="cuda", memory_gb=80,
        names=("NVIDIA H100 80GB HBM3",),
        peak_tflops={"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9},
        bandwidth_gb_s=3350, link="NVLink 4", link_gb_s=900, power_w=700,
        price=_rent(3.99, _LAMBDA, "2026-09-20"), source=_H100,
    ),
    Accelerator(
        key="h100-pcie-80gb", family="h100", kind="cuda", memory_gb=80,
        names=("NVIDIA H100 PCIe",),
        peak_tflops={"fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756, "fp8": 1513},
        bandwidth_gb_s=2000, link="NVLink 4 bridge", link_gb_s=600, power_w=350,
        price=_rent(3.29, _LAMBDA, "2026-09-20"),
        source=f"{_NVIDIA}/gtcs22/data-center/h100/PB-11133-001_v01.pdf",
    ),
    Accelerator(
        key="h100-nvl-94gb", family="h100", kind="cuda", memory_gb=94,
        names=("NVIDIA H100 NVL",),
        peak_tflops={"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1670.5},
        bandwidth_gb_s=3900, link="NVLink 4 bridge", link_gb_s=600, power_w=400,
        price=_rent(3.19, _RUNPOD_AUGUST, "2026-08-19"), source=_H100,
    ),
    Accelerator(  # The SXM module's name has no suffix. Only the PCIe card's has one (NVL).
        key="h200-sxm-141gb", family="h200", kind="cuda", memory_gb=141,
        names=("NVIDIA H200",),
        peak_tflops={"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9},
        bandwidth_gb_s=4800, link="NVLink 4", link_gb_s=900, power_w=700,
        price=_rent(4.45, _AKASH, "2026-09-20"), source=_H200,
    ),
    Accelerator(
        key="h200-nvl-141gb", family="h200", kind="cuda", memory_gb=141,
        names=("NVIDIA H200 NVL",),
        peak_tflops={"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1670.5},
        bandwidth_gb_s=4800, link="NVLink 4 bridge", link_gb_s=900, power_w=600,
        source=_H200,
    ),
    Accelerator(  # NVIDIA publishes no data sheet, so the figures are from a third party.
        key="h20-sxm-96gb", family="h20", kind="cuda", memory_gb=96,
        names=("NVIDIA H20",),
        peak_tflops={"fp32": 44, "tf32": 74, "bf16": 148, "fp16": 148, "fp8": 296},
        bandwidth_gb_s=4000, link="NVLink 4", link_gb_s=900, power_w=400,
        source="https://github.com/lamonoai/gpumap/blob/main/nvidia/GPU.md",
    ),
    Accelerator(  # The power is the module's, CPU included.
        key="gh200-96gb", family="gh200", kind="cuda", memory_gb=96,
        names=("NVIDIA GH200 480GB",),
        peak_tflops={"fp32": 67, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9},
        bandwidth_gb_s=4000, link="NVLink 4", link_gb_s=900, power_w=1000,
        price=_rent(2.29, _LAMBDA, "2026-09-20"),
        source="https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip",
    ),
    # NVIDIA Blackwell.
    Accelerator(
        key="b200-sxm-180gb", family="b200", kind="cuda", memory_gb=180,
        names=("NVIDIA B200",),
        peak_tflops={"fp32": 75, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500},
        bandwidth_gb_s=8000, link="NVLink 5", link_gb_s=1800, power_w=1000,
        price=_rent(6.69, _LAMBDA, "2026-09-20"), source="https://www.nvidia.com/en-us/data-center/hgx/",
    ),
    Accelerator(
        key="rtx-5090-32gb", family="rtx-5090", kind="cuda", memory_gb=32,
        names=("NVIDIA GeForce RTX 5090",),
        peak_tflops={"fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 209.5, "fp8": 419},
        bandwidth_gb_s=1792, link="PCIe 5", link_gb_s=128, power_w=575,
        price=_buy(1999, _RTX_50, "2025-01"), source=_BLACKWELL_RTX,
    ),
    # AMD. PyTorch sees an MI250X as two devices, and the figures are for one of them. AMD publishes links per package
    # only.
    Accelerator(
        key="mi250x-64gb", family="mi250x", kind="cuda", memory_gb=64,
        names=("AMD Instinct MI250X",),
        peak_tflops={"fp32": 47.9, "bf16": 191.5, "fp16": 191.5},
        bandwidth_gb_s=1638, link="Infinity Fabric 3", link_gb_s=None, power_w=280,
        source=f"{_AMD}/mi200/mi250x.html",
    ),
    Accelerator(
        key="mi300x-192gb", family="mi300x", kind="cuda", memory_gb=192,
        names=("AMD Instinct MI300X", "AMD Instinct MI300X OAM"),
        peak_tflops={"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9},
        bandwidth_gb_s=5300, link="Infinity Fabric 4", link_gb_s=896, power_w=750,
        price=_rent(1.85, _AMD_MAY, "2026-05-18"),
        source=f"{_AMD}/mi300/mi300x.html",
    ),
    Accelerator(
        key="mi325x-256gb", family="mi325x", kind="cuda", memory_gb=256,
        names=("AMD Instinct MI325X",),
        peak_tflops={"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9},
        bandwidth_gb_s=6000, link="Infinity Fabric 4", link_gb_s=896, power_w=1000,
        price=_rent(1.95, _AMD_MAY, "2026-05-18"),
        source=f"{_AMD}/mi300/mi325x.html",
    ),
    # Intel Gaudi. No peak of the first Gaudi was ever published.
    Accelerator(
        key="gaudi-32gb", family="gaudi", kind="hpu", memory_gb=32,
        names=("GAUDI",),
        peak_tflops={},
        bandwidth_gb_s=1000, link="10 × 100 Gb Ethernet", link_gb_s=250, power_w=350,
        source=_GAUDI,
    ),
    Accelerator(
        key="gaudi2-96gb", family="gaudi2", kind="hpu", memory_gb=96,
        names=("GAUDI2",),
        peak_tflops={"bf16": 432, "fp8": 865},
        bandwidth_gb_s=2450, link="24 × 100 Gb Ethernet", link_gb_s=600, power_w=600,
        source=_GAUDI3,
    ),
    Accelerator(
        key="gaudi3-128gb", family="gaudi3", kind="hpu", memory_gb=128,
        names=("GAUDI3",),
        peak_tflops={"bf16": 1835, "fp8": 1835},
        bandwidth_gb_s=3700, link="24 × 200 Gb Ethernet", link_gb_s=1200, power_w=900,
        price=_buy(15625, _GAUDI3_KIT, "2024-06"), source=_GAUDI3,
    ),
    # Intel Max 1550: one device in composite mode, two in flat mode (the default). The name is the same in both modes.
    # The peak of the whole card is operations per clock × 128 cores × 1.6 GHz.
    Accelerator(
        key="max-1550-64gb", family="max-1550", kind="xpu", memory_gb=64,
        names=("Intel(R) Data Center GPU Max 1550",),
        peak_tflops={"fp32": 26.2, "tf32": 209.7, "bf16": 419.4, "fp16": 419.4},
        bandwidth_gb_s=1638, link="Xe Link", link_gb_s=None, power_w=300,
        source=_MAX,
    ),
    Accelerator(
        key="max-1550-128gb", family="max-1550", kind="xpu", memory_gb=128,
        names=("Intel(R) Data Center GPU Max 1550",),
        peak_tflops={"fp32": 52.4, "tf32": 419.4, "bf16": 838.9, "fp16": 838.9},
        bandwidth_gb_s=3277, link="Xe Link", link_gb_s=None, power_w=600,
        source=_MAX,
    ),
)}
# fmt: on
"""All known accelerators by key. To add an accelerator, add a row: see docs/add-hardware.md."""
