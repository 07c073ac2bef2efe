"""Plots of records as one HTML page that needs no network. They need ``pip install -e ".[pictures]"``.

python -m bench_tests.results.plots h200 > pictures.html      # the stored baselines
python -m bench_tests.results.plots results/ > pictures.html  # a folder that --results wrote
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_tests.results.stored import stored
from bench_tests.tables import ddp_scaling, scaling
from pytest_trainbench.judge.middle import stored_judged
from pytest_trainbench.schema.record import Record, read_record

if TYPE_CHECKING:
    import pandas as pd

WIDE = 2
"""Panels of a plot in one line."""

PUBLISHED_ACCELERATION = "published for one closed accelerator: 1.05× to 3×, the more the worse plain DDP scales"


def acceleration(records: Sequence[Record]) -> Any | None:
    """The published plot, once for each accelerated variant: one dot for each model, batch and number of devices.

    ``None`` if no record has both figures of a dot.
    """
    from plotly import express

    dots = ddp_scaling.points(records)
    if dots.empty:
        return None
    figure = express.scatter(
        **_coloured(dots),
        x="ddp_acc",
        y="acc_ratio",
        facet_col="strategy",
        facet_col_wrap=WIDE,
        hover_name="model",
        hover_data=["micro_batch", "base"],
        text="model",
        title=f"Acceleration of data parallelism<br><sup>{PUBLISHED_ACCELERATION}</sup>",
        labels={
            "ddp_acc": "linearity of plain DDP",
            "acc_ratio": "samples/s ÷ plain DDP",
            "micro_batch": "batch a device",
            "base": "linearity against devices",
        },
    )
    figure.update_traces(textposition="top center", textfont_size=9, cliponaxis=False)
    figure.update_xaxes(tickformat=".0%")
    figure.add_hline(y=1, line_dash="dot", line_width=1)
    return _laid_out(figure, parts=dots.strategy.nunique())


def losses(records: Sequence[Record]) -> Any | None:
    """Loss over samples of the scaling suite: one line for each number of devices. ``None`` without a series."""
    from plotly import express

    curves = scaling.curves(records)
    if curves.empty:
        return None
    figure = express.line(
        **_coloured(curves.assign(series=curves.model + ", " + curves.scaling)),
        x="samples",
        y="loss",
        facet_col="series",
        facet_col_wrap=WIDE,
        markers=True,
        title="Loss over samples",
    )
    # Models and global batches differ by orders of magnitude, so each panel has its own axes.
    figure.update_xaxes(matches=None, showticklabels=True)
    figure.update_yaxes(matches=None, showticklabels=True)
    return _laid_out(figure, parts=curves.groupby(["model", "scaling"]).ngroups)


def _coloured(points: pd.DataFrame) -> dict[str, Any]:
    """Arguments that give each number of devices its own colour, in ascending order."""
    order = list(map(str, sorted({*points.devices})))
    shown = points.assign(devices=points.devices.astype(str))
    return {"data_frame": shown, "color": "devices", "category_orders": {"devices": order}}


def _laid_out(figure: Any, *, parts: int) -> Any:
    """Set the height by the number of panels, and shorten panel titles such as ``strategy=powersgd`` to
    ``powersgd``."""
    figure.for_each_annotation(lambda title: title.update(text=title.text.rpartition("=")[2]))
    return figure.update_layout(height=120 + 380 * math.ceil(parts / WIDE))


PICTURES: dict[str, Callable[[Sequence[Record]], Any | None]] = {
    "ddp_scaling, plain on several numbers of devices and a faster kind": acceleration,
    "scaling on several numbers of devices": losses,
}
"""What the records must contain -> the function that draws the plot."""


def page(records: Sequence[Record]) -> str:
    """All plots that ``records`` can fill. If they fill none, raises ``ValueError`` that says what is missing."""
    figures = [figure for draw in PICTURES.values() if (figure := draw(records)) is not None]
    if not figures:
        raise ValueError(f"{len(records)} records are not enough for a plot, which needs {', or '.join(PICTURES)}")
    parts = [figure.to_html(full_html=False, include_plotlyjs=number == 0) for number, figure in enumerate(figures)]
    return '<!doctype html>\n<meta charset="utf-8">\n<title>Training benchmarks</title>\n' + "\n".join(parts) + "\n"


def main(where: str) -> None:
    if find_spec("plotly") is None:
        sys.exit("plots need plotly: pip install plotly")
    groups = [sorted(Path(where).rglob("*.json"))] if Path(where).is_dir() else stored(where).values()
    paths = [path for group in groups for path in group]
    if not paths:
        sys.exit(f"{where} is neither a folder with records nor hardware with baselines")
    try:
        sys.stdout.write(page(stored_judged([read_record(path) for path in paths])))
    except ValueError as error:
        sys.exit(f"{where}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
