"""Print records in the format of another tool.

python -m pytest_trainbench.export openmetrics artifacts/ > metrics.txt

The path is a file, or a folder that ``--results`` wrote or that holds baselines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_trainbench.report.exchange import FORMATS
from pytest_trainbench.schema.record import read_record


def main(arguments: Sequence[str] | None = None) -> None:
    """Raises ``SystemExit`` with one sentence for a path that holds no record."""
    parser = argparse.ArgumentParser(prog="python -m pytest_trainbench.export", description="print records for a tool")
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("path", type=Path)
    options = parser.parse_args(arguments)
    paths = sorted(options.path.rglob("*.json")) if options.path.is_dir() else [options.path]
    try:
        records = [read_record(path) for path in paths]
    except ValueError as error:
        sys.exit(str(error))
    if not records:
        sys.exit(f"{options.path} holds no record; --results DIR writes records")
    print(FORMATS[options.format].write(records), end="")


if __name__ == "__main__":
    main()
