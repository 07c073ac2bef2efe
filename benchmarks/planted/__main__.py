"""Measures runs with planted slowdowns, and prints docs/planted.md; see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.planted import runs
from benchmarks.planted.faults import FAULTS
from benchmarks.planted.page import page


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description="measure planted slowdowns")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("run", help="measure; pytest gets all further arguments")
    measuring.add_argument("file", type=Path, help="a new .jsonl file for the runs, named before pytest's arguments")
    measuring.add_argument("--nights", type=int, default=10, help="number of runs without a change (default: 10)")
    measuring.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS), help="which (default: all)")
    printing = commands.add_parser("page", help="print the page of the measured runs")
    printing.add_argument("files", type=Path, nargs="+")
    options, arguments = parser.parse_known_args()
    if options.command == "run":
        if options.file.suffix != ".jsonl":
            parser.error(f"{options.file} must end in .jsonl and come before pytest's arguments")
        if options.file.exists():
            parser.error(f"{options.file} exists and belongs to another run; name a new file")
        for run in runs.run([runs.UNCHANGED] * options.nights + options.faults, arguments):
            runs.write(run, options.file)
    elif arguments:
        parser.error(f"page takes files only, not {' '.join(arguments)}")
    else:
        try:
            print("\n\n".join(page([runs.read(path) for path in options.files])))
        except (OSError, ValueError) as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
