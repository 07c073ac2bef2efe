"""Records in the formats of other tools. The reader of each format, or its rules, checks the text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from samples import failed, launch, record

from pytest_trainbench import export
from pytest_trainbench.report.exchange import FORMATS
from pytest_trainbench.schema.record import Record, dump, read_record

HOSTILE = 'x[a"b\\c\n{le="1"} # EOF]'


def rows() -> list[Record]:
    good = record(*(launch(ms, samples_per_s=1000 / ms, peak_allocated_bytes=7.0, kernels=3) for ms in (99, 100, 102)))
    return [good, record(launch(50.0), label=HOSTILE), record(failed("oom"), label="big")]


def test_github_action_benchmark_gets_medians_of_what_should_be_small() -> None:
    found = json.loads(FORMATS["github-action-benchmark"].write(rows()))
    assert found[0] == {
        "name": "sharding[zero2-dp2]: step time",
        "unit": "ms",
        "value": 100,
        "range": "± 1.53",
        "extra": "h200-sxm, 3 launches",
    }
    assert [one["name"] for one in found[1:]] == [
        "sharding[zero2-dp2]: peak allocated memory",
        f"{HOSTILE}: step time",
    ]
    for one in found:  # what the action's reader of custom formats asks for
        assert isinstance(one["name"], str) and isinstance(one["unit"], str) and isinstance(one["value"], (int, float))


def test_bencher_gets_each_measure_with_its_bounds() -> None:
    found = json.loads(FORMATS["bencher"].write(rows()))
    assert found["sharding[zero2-dp2]"]["step_ms"] == {"value": 100, "lower_value": 99, "upper_value": 102}
    assert set(found["sharding[zero2-dp2]"]) == {"step_ms", "samples_per_s", "peak_allocated_bytes"}
    assert set(found) == {"sharding[zero2-dp2]", HOSTILE}, "a row that ran out of memory has no figures"


def test_prometheus_reads_the_openmetrics_text() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {
        family.name: family for family in parser.text_string_to_metric_families(FORMATS["openmetrics"].write(rows()))
    }
    assert set(families) == {"trainbench_step_ms", "trainbench_samples_per_s", "trainbench_peak_allocated_bytes"}
    step = families["trainbench_step_ms"]
    assert (step.type, step.documentation) == ("gauge", "step time, ms")
    assert [(one.labels["row"], one.value) for one in step.samples] == [("sharding[zero2-dp2]", 100), (HOSTILE, 50)]
    assert step.samples[0].labels == {
        "row": "sharding[zero2-dp2]",
        "hardware": "h200-sxm",
        "mesh": "dp2",
        "machine": "0123abcd",
    }
    assert list(parser.text_string_to_metric_families(FORMATS["openmetrics"].write([]))) == []


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_prints_a_folder_of_records_in_each_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(dump(rows()[0].to_json()), encoding="utf-8")
    command = [sys.executable, "-m", "pytest_trainbench.export", name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == FORMATS[name].write([read_record(path)])


def test_a_path_without_records_is_refused_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no record; --results DIR writes records$"):
        export.main(["bencher", str(tmp_path)])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"other.json cannot be read as a record: it has no 'schema'$"):
        export.main(["bencher", str(tmp_path)])


def test_every_format_is_on_a_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "nightly.md").read_text(encoding="utf-8")
    assert [name for name in FORMATS if not re.search(rf"`{name}`", page)] == []
