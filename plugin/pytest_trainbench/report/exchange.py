"""Records in the formats of other tools. A format is a function and its row in :data:`FORMATS`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, stdev

from pytest_trainbench.schema.metrics import METRICS, Metric, Relative, Statistical
from pytest_trainbench.schema.record import Record


@dataclass(frozen=True, kw_only=True)
class Format:
    """``write``: records -> the text of a file. ``reader``: the tool that reads it. ``source``: where the format is
    defined."""

    write: Callable[[Sequence[Record]], str]
    reader: str
    source: str


def smaller_is_better(records: Sequence[Record]) -> str:
    """A JSON list with one entry for each record and each judged metric of which less is better: its median over the
    launches, and their standard deviation as ``range``."""
    return _json(
        [
            {
                "name": f"{record.label}: {metric.title}",
                "unit": metric.unit,
                "value": median(values),
                **({"range": f"± {stdev(values):.3g}"} if len(values) > 1 else {}),
                "extra": f"{record.hardware}, {len(values)} launches",
            }
            for record, _, metric, values in _figures(records)
            if not metric.higher_is_better
        ]
    )


def bencher(records: Sequence[Record]) -> str:
    """A JSON object: label -> metric -> its median over the launches, with the least and the most of them."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for record, name, _, values in _figures(records):
        figures = {"value": median(values), "lower_value": min(values), "upper_value": max(values)}
        found.setdefault(record.label, {})[name] = figures
    return _json(found)


def openmetrics(records: Sequence[Record]) -> str:
    """Gauges in OpenMetrics text, one family for each judged metric: the median over the launches, at the time of the
    measurement."""
    families: dict[str, list[str]] = {}
    for record, name, metric, values in _figures(records):
        labels = {
            "row": record.label,
            "hardware": record.hardware,
            "mesh": str(record.case.mesh),
            "machine": record.machine,
        }
        text = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
        lines = families.setdefault(
            name, [f"# TYPE trainbench_{name} gauge", f"# HELP trainbench_{name} {_help(metric)}"]
        )
        lines.append(f"trainbench_{name}{{{text}}} {median(values)!r}")
    return "\n".join([line for lines in families.values() for line in lines] + ["# EOF\n"])


FORMATS: dict[str, Format] = {
    "github-action-benchmark": Format(
        write=smaller_is_better,
        reader="github-action-benchmark, tool: customSmallerIsBetter",
        source="https://github.com/benchmark-action/github-action-benchmark#examples",
    ),
    "bencher": Format(
        write=bencher,
        reader="Bencher, --adapter json",
        source="https://bencher.dev/docs/reference/bencher-metric-format/",
    ),
    "openmetrics": Format(
        write=openmetrics,
        reader="Prometheus and what else reads OpenMetrics",
        source="https://prometheus.io/docs/specs/om/open_metrics_spec/",
    ),
}


def _figures(records: Sequence[Record]) -> Iterator[tuple[Record, str, Metric, list[float]]]:
    """Each record with each of its judged metrics that has a size: counts of the work are no figures to plot."""
    for record in records:
        for name, metric in METRICS.items():
            if isinstance(metric.gate, (Statistical, Relative)) and (values := record.values(name)):
                yield record, name, metric, values


def _json(data: object) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _help(metric: Metric) -> str:
    return _escaped(f"{metric.title}, {metric.unit}" if metric.unit else metric.title)


def _escaped(text: str) -> str:
    return re.sub(r'[\\"\n]', lambda found: {"\\": r"\\", '"': r"\"", "\n": r"\n"}[found[0]], text)
