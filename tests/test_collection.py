"""Listing the suite needs neither torch nor a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = """
import sys, pytest
code = pytest.main(["bench_tests", "--collect-only", "-q", *sys.argv[1:]])
print("heavy:", sorted({"torch", "pandas", "scipy", "transformers", "deepspeed"} & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize(("hardware", "mesh"), [("cpu", "dp2"), ("a100", "dp4"), ("gaudi2", "dp4")])
def test_the_suite_of_any_hardware_is_listed_on_any_machine_without_a_heavy_import(hardware: str, mesh: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST, "--hw", hardware], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"bench_tests/test_sharding.py::test_sharding[zero2-{mesh}]" in done.stdout
    assert "heavy: []" in done.stdout


def test_k_picks_rows_by_their_names() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST, "--hw", "a100", "-k", "zero"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    rows = [line.rpartition("[")[2] for line in done.stdout.splitlines() if "::" in line]
    assert rows == ["zero1-dp4]", "zero2-dp4]", "zero3-dp4]"]
