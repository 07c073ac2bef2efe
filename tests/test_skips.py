"""Rows that a device cannot run are skipped before any launch. The report shows them with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


ROWS = {
    "test_mixed_precision.py::test_mixed_precision_compiled[tf32-dp1]": "has no hardware for tf32 products",
    "test_mixed_precision.py::test_mixed_precision[fp8-dp2]": "has no hardware for fp8 products",
    "test_ddp_scaling.py::test_ddp_scaling[resnet18-ddp-default-saturating-dp1]": "need a device with 48 GB",
    "test_parallel_3d.py::test_parallel_3d[torch-1f1b-tp4-pp4]": "needs 16 ranks, and this CPU gets 4",
}


def test_rows_that_cannot_run_here_say_why() -> None:
    """The rows have their published sizes. If one ran on this CPU, it would exceed the time limit."""
    command = [sys.executable, "-m", "pytest", *(f"bench_tests/{row}" for row in ROWS), "--hw", "cpu"]
    done = subprocess.run(
        [*command, "--profile", "seed", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]
    for row, reason in ROWS.items():
        label = row.partition("::test_")[2]
        assert any(line.startswith(f"skipped: {label}: ") and reason in line for line in said), done.stdout
    assert f"{len(ROWS)} skipped" in done.stdout
