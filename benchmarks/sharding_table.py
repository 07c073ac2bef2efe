"""Stored sharding baselines beside the published figures, as Markdown.

    python benchmarks/sharding_table.py baselines/h200-sxm-141gb

Medians over launches. The published figures are of a public comparison of the same model and libraries on 4 GPUs of the
V100-32GB class (samples/s ± standard deviation, MiB); they are shown, never used to judge.
"""

from __future__ import annotations

import sys

from bench_tests.strategies import STRATEGIES
from pytest_trainbench import load

PUBLISHED = {
    "ddp-fp32": ("OOM", "OOM"),
    "ddp": ("9.57 ± 0.26", "25,061"),
    "oss": ("6.02 ± 0.06", "22,077"),
    "oss-sdp": ("7.01 ± 0.07", "17,113"),
    "zero1": ("12.88 ± 0.10", "15,709"),
    "zero2": ("10.27 ± 0.08", "15,693"),
}


def main(folder: str) -> None:
    launches = load(folder)
    print("| row | strategy | samples/s | peak MiB | MFU | launches apart | published samples/s | published MiB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name, row in STRATEGIES.items():
        ours = launches[launches["param.strategy"] == name]
        if ours.empty:
            continue
        middle = ours.median(numeric_only=True)
        apart = ours["step_ms"].std() / ours["step_ms"].mean()
        samples, mib = PUBLISHED.get(name, ("N/A", "N/A"))
        print(
            f"| `{name}` | {row.title} | {middle['samples_per_s']:.1f} | {middle['peak_allocated_bytes'] / 2**20:,.0f}"
            f" | {middle['mfu']:.1%} | {apart:.1%} | {samples} | {mib} |"
        )


if __name__ == "__main__":
    main(sys.argv[1])
