"""Listing the suite needs neither torch nor a device."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_trainbench.session import SESSION

ROOT = Path(__file__).parents[1]
LIST = """
import sys, pytest
code = pytest.main(["bench_tests", "--collect-only", "-q", *sys.argv[1:]])
print("heavy:", sorted({"torch", "pandas", "scipy", "transformers", "deepspeed", "onnxruntime"} & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize(("hardware", "mesh"), [("cpu", "dp2"), ("a100", "dp4"), ("gaudi2", "dp4")])
def test_listing_the_suite_needs_no_device_and_no_heavy_import(hardware: str, mesh: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST, "--hw", hardware], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"bench_tests/test_sharding.py::test_sharding[zero2-{mesh}]" in done.stdout
    assert "heavy: []" in done.stdout


def test_k_selects_rows_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST, "--hw", "a100", "-k", "zero"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    rows = [line.rpartition("[")[2] for line in done.stdout.splitlines() if "::" in line]
    assert rows == ["zero1-dp4]", "zero2-dp4]", "zero3-dp4]"]


def test_a_row_outside_the_grid_names_the_option_that_has_it() -> None:
    row = "bench_tests/test_layer_tflops.py::test_layer[gpt2-fwd_bwd-eager-b2-s512]"
    command = [sys.executable, "-m", "pytest", row, "--collect-only", "-q", "--hw", "a100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert "a row that only the whole published grid has needs --grid full" in done.stderr
    full = subprocess.run(
        [*command, "--grid", "full"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert row in full.stdout


@pytest.mark.parametrize(("hardware", "profile"), [("cpu", "smoke"), (None, "seed")])
def test_the_header_names_the_profile_and_what_it_is(hardware: str | None, profile: str) -> None:
    header = runpy.run_path(str(ROOT / "conftest.py"))["pytest_report_collectionfinish"]
    options = {"--profile": None if hardware else profile, "--grid": "headline"}
    config = SimpleNamespace(
        option=SimpleNamespace(collectonly=False),
        getoption=options.__getitem__,
        stash={SESSION: SimpleNamespace(hardware=SimpleNamespace(kind=hardware))},
    )
    said = header(config, [SimpleNamespace(fixturenames=["bench"])])
    assert said.startswith(f"bench_tests: profile {profile}, ") and said.endswith("; --grid headline")
    assert header(config, [SimpleNamespace(fixturenames=[])]) is None


def test_grid_selects_how_many_published_shapes_are_listed() -> None:
    def rows(grid: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", LIST, "--hw", "a100", "--grid", grid, "-k", "gpt2-fwd_bwd-eager"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return [line.rpartition("[")[2] for line in done.stdout.splitlines() if "::" in line]

    assert rows("headline") == [
        f"gpt2-fwd_bwd-eager-b{batch}-s{length}]" for length in (512, 1024) for batch in (16, 64)
    ]
    assert rows("published") == [
        f"gpt2-fwd_bwd-eager-b{batch}-s{length}-published]" for length in (512, 1024) for batch in (2, 4, 8, 16, 32, 64)
    ]
