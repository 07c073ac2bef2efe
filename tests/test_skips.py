"""What a device has not got is skipped with the reason, before anything is started, and shown as a row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("test_mixed_precision.py::test_mixed_precision_compiled[tf32-dp1]", "has no tf32 products"),
        ("test_mixed_precision.py::test_mixed_precision[fp8-dp2]", "has no fp8 products"),
        ("test_ddp_scaling.py::test_ddp_scaling[resnet18-ddp-default-saturating-dp1]", "sized for 140 GB"),
        ("test_parallel_3d.py::test_parallel_3d[torch-1f1b-tp4-pp4]", "needs 16 devices, has 4"),
    ],
)
def test_a_row_that_cannot_run_here_says_why(row: str, reason: str) -> None:
    """The published size of each: had it run on this CPU, it would not have ended within the limit."""
    command = [sys.executable, "-m", "pytest", f"bench_tests/{row}", "--hw", "cpu", "--profile", "seed"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    label = row.partition("::test_")[2]
    assert f"skipped: {label}: " in done.stdout and reason in done.stdout, done.stdout
    assert "1 skipped" in done.stdout
