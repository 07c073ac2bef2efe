"""Pages are generated from the code and from stored rows. These tests check the generator, not the stored figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import MIB, case, launch, record

from bench_tests.charts import CHARTS
from bench_tests.pages import example, pictures, reference, site, stored
from bench_tests.pages.blocks import filled, names
from pytest_trainbench.judge.outcome import OUTCOMES
from pytest_trainbench.schema.record import Record
from pytest_trainbench.settings import OPTIONS

ROOT = Path(__file__).parent.parent

PAGES = {page: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}


def row(label: str, mesh: str, *step_ms: float, params: dict[str, Any], **metrics: float) -> Record:
    figures: dict[str, Any] = {
        "samples_per_s": 40.0,
        "compute_ms": 60.0,
        "host_ms": 50.0,
        "peak_allocated_bytes": 2048 * MIB,
        **metrics,
    }
    launches = [launch(ms, conditions={"sm_mhz": [1500.0], "sw_power_cap": [1.0]}, **figures) for ms in step_ms]
    of = case(builder=f"suite:{'parallel_step' if 'engine' in params else 'train_step'}", mesh=mesh, **params)
    return record(*launches, label=label, of=of)


def sharded(strategy: str, *step_ms: float, **metrics: float) -> Record:
    params = {"model": "gpt-1.3b", "strategy": strategy, "precision": "bf16"}
    return row(f"sharding[{strategy}-dp4]", "dp4", *step_ms, params=params, **metrics)


def split(engine: str, mesh: str, schedule: str | None, *step_ms: float, **metrics: float) -> Record:
    params = {"model": "gpt-1.3b", "engine": engine, "schedule": schedule, "global_batch": 4, "micro_batch": 1}
    name = "-".join(filter(None, (engine, schedule, mesh)))
    return row(f"parallel_3d[{name}]", mesh, *step_ms, params=params, **metrics)


ROWS = [
    sharded("ddp", 100.0, 100.0),
    sharded("fsdp2", 90.0, 110.0, host_ms=95.0),
    sharded("fsdp2-recorded", 80.0, 80.0),
    split("torch", "dp2-tp2", None, 600.0, host_ms=900.0),
    split("torch-recorded", "dp2-tp2", None, 100.0),
    split("torch", "pp4", "1f1b", 100.0),
    row("matrix_product[bf16-4096]", "dp1", 100.0, params={"x": 1}, flops_per_step=6e13, tflops_per_device=500.0),
    row("scaling[weak-bert-dp2]", "dp2", 100.0, params={"x": 2}, loss_deviation=0.0123),
    row("trainer_eval[bf16-dp2]", "dp2", 100.0, params={"x": 3}, kernels=7.0),
]
"""A small set of rows, with something for each block to show."""


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_a_block_is_filled_and_the_rest_of_the_page_stays() -> None:
    page = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb <!-- generated: y --><!-- end -->"
    once = filled(page, {"x": "| new |", "y": "1"})
    assert once == ("a\n<!-- generated: x -->\n\n| new |\n\n<!-- end -->\nb <!-- generated: y -->\n\n1\n\n<!-- end -->")
    assert filled(once, {"x": "| new |", "y": "1"}) == once


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("<!-- generated: z --><!-- end -->", "there is no generated block 'z': use one of x"),
        ("<!-- generated: x -->", "a block has no end"),
        ("<!-- generated: x --> <!-- generated: x --><!-- end -->", "a block has no end"),
    ],
)
def test_a_block_that_cannot_be_filled_is_refused(page: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        filled(page, {"x": ""})


@pytest.fixture(scope="module")
def made_from_code() -> dict[str, str]:
    return reference.blocks()


def test_pages_use_exactly_the_blocks_that_can_be_generated(made_from_code: dict[str, str]) -> None:
    used = {name for text in PAGES.values() for name in names(text)}
    assert used == {*made_from_code, *stored.BLOCKS}


def test_the_reference_pages_match_the_code(made_from_code: dict[str, str]) -> None:
    """The reference depends on no stored row."""
    for page, text in PAGES.items():
        shown = {name: content for name, content in made_from_code.items() if name in names(text)}
        whole = {name: f"<!-- generated: {name} -->\n\n{content}\n\n<!-- end -->" for name, content in shown.items()}
        stale = [name for name, block in whole.items() if block not in text]
        assert not stale, f"{page.name} is stale in {', '.join(stale)}: python -m bench_tests.pages"


def test_every_outcome_and_every_option_is_explained() -> None:
    assert set(reference.WHEN) == set(OUTCOMES)
    assert {*OUTCOMES.values()} == {*reference.ENDS}
    assert len(cells(reference.options(OPTIONS))) == len(OPTIONS)


def test_a_vertical_bar_in_a_cell_is_escaped() -> None:
    assert (
        reference.table([{"a": "x|y", "b": "12 %"}]) == "| a        |    b |\n|:---------|-----:|\n| x&#124;y | 12 % |"
    )


def test_each_block_shows_its_own_rows() -> None:
    made = stored.blocks(ROWS)
    shown, measured_on = made["sharding-table"].split("\n\n")
    assert [row[0] for row in cells(shown)] == ["`ddp`", "`fsdp2`", "`fsdp2-recorded`"]
    assert measured_on == "4 × NVIDIA H200; judged figures of 2 launches a row, on 1 machine."
    assert cells(made["host-bound-sharding"])[1] == ["`fsdp2`", "100.0", "60.0", "14.1 %", "yes"]
    recorded = {row[0]: row[1:] for row in cells(made["recorded"])}
    assert recorded["`sharding[fsdp2-dp4]`"] == ["100.0", "14.1 %", "80.0", "0.0 %"]
    assert cells(made["tensor-parallel-host"]) == [["PyTorch: DTensor, pipelining, DDP", "10.0", "1"]]
    assert cells(made["pipeline-idle"]) == [["1F1B", "4", "1", "43%", "40%"]]
    assert cells(made["scaling-losses"]) == [["`scaling[weak-bert-dp2]`", "1.23 %"]]
    assert cells(made["products"]) == [["`matrix_product[bf16-4096]`", "1,500", "100.0 %", "500", "1000"]]
    assert made["unequal-kernels"] == stored.NOTHING, "its launches agree"


def test_rows_with_unequal_kernel_counts_are_named() -> None:
    launches = [launch(100.0, kernels=count) for count in (7.0, 8.0)]
    assert cells(stored.unequal_kernels([record(*launches, label="x[dp2]")])) == [["`x[dp2]`", "7 to 8"]]


def test_a_block_without_rows_says_so() -> None:
    assert set(stored.blocks([]).values()) == {stored.NOTHING}


def test_every_kind_of_hardware_with_baselines_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"h200": ["h200-sxm-141gb"], "a100": ["a100-sxm-40gb", "a100-sxm-80gb"]}
    monkeypatch.setattr(stored, "stored", lambda family: {key: [] for key in found.get(family, [])})
    assert set(stored.with_page()) == {"h200", "a100-sxm-40gb", "a100-sxm-80gb"}


def test_stored_rows_fill_every_block() -> None:
    """This holds for any stored figures."""
    assert all(stored.blocks(stored.records()).values())


def test_the_picture_has_a_labelled_point_for_each_strategy() -> None:
    drawn = pictures.sharding(ROWS)
    assert drawn.count("<circle") == 3 + 2, "and two in the key"
    assert all(f">{name}</text>" in drawn for name in ("ddp", "fsdp2", "fsdp2-recorded"))
    assert "prefers-color-scheme: dark" in drawn and "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    with pytest.raises(ValueError, match="save baselines of sharding first"):
        pictures.sharding([])


@pytest.mark.parametrize(("most", "step"), [(100.0, 20.0), (99.0, 20.0), (24.4, 5.0), (7.0, 2.0), (4.0, 1.0)])
def test_an_axis_has_round_steps(most: float, step: float) -> None:
    assert pictures.nice(most) == step


def test_the_stored_flow_picture_matches_its_steps() -> None:
    assert all(f">{title}</text>" in pictures.flow() for title, _ in pictures.FLOW)
    assert (ROOT / "docs" / "flow.svg").read_text(encoding="utf-8") == pictures.flow(), (
        "it is stale: python -m bench_tests.pages"
    )


def test_the_example_of_the_web_page_has_red_rows_and_the_pictures_of_the_suite() -> None:
    """This holds for any stored figures of rows that are slowed down by more than they vary."""
    html = example.example(example.records())
    assert f"{len(example.SLOWER)} of" in html and html.count('<article class="card">') == len(example.SLOWER)
    assert all(f"<summary>{title} (" in html for title in CHARTS)
    assert site.foreign(html) == []


def test_the_example_needs_exactly_one_file_name() -> None:
    command = [sys.executable, "-m", "bench_tests.pages.example"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr.partition(":")[0]) == (1, "name one file")


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="https://x.org/">x</a><img src="a.svg"><link rel="canonical" href="https://x.org">', []),
        ('<script src="https://cdn.org/a.js"></script>', ["https://cdn.org/a.js"]),
        ('<link rel="stylesheet" href="//cdn.org/a.css">', ["//cdn.org/a.css"]),
        ("<style>@font-face { src: url('https://cdn.org/a.woff') }</style>", ["https://cdn.org/a.woff"]),
    ],
)
def test_resources_from_other_hosts_are_found(html: str, found: list[str]) -> None:
    assert site.foreign(html) == found


def test_every_repository_file_that_a_page_names_exists() -> None:
    named = re.compile(r"`((?:plugin|bench_tests|benchmarks|tests|pages|docs)/[\w/.-]*\w/?)(?:::\w+)?`")
    texts = {**PAGES, **{ROOT / name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "CHANGELOG.md")}}
    gone = [
        (page.name, name) for page, text in texts.items() for name in named.findall(text) if not (ROOT / name).exists()
    ]
    assert gone == []


def test_links_are_rewritten_for_the_site() -> None:
    text = "[a](docs/a.md#x) [b](../CONTRIBUTING.md#y) [c](CHANGELOG.md) [d](../README.md) ![e](docs/e.svg)"
    assert site.linked(text) == "[a](a.md#x) [b](CONTRIBUTING.md#y) [c](CHANGELOG.md) [d](index.md) ![e](e.svg)"
