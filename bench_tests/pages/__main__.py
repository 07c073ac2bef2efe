"""``python -m bench_tests.pages`` writes every generated part of README.md and docs/ anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench_tests.pages import blocks, pictures, reference, stored

ROOT = Path(__file__).parent.parent.parent


def printed(*command: str) -> str:
    """What a module prints. It runs in a process of its own, because pytest runs in it."""
    line = [sys.executable, "-m", *command]
    return subprocess.run(line, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    records = stored.records()
    runs = sorted(map(str, (ROOT / "benchmarks" / "planted" / "runs").glob("*.jsonl")))
    whole = {
        **{f"results-{name}.md": printed("bench_tests.results", name) for name in stored.with_page()},
        "planted.md": printed("benchmarks.planted", "page", *runs),
        "sharding-h200.svg": pictures.sharding(records),
        "flow.svg": pictures.flow(),
    }
    for name, text in whole.items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")
    found = {**reference.blocks(), **stored.blocks(records)}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        page.write_text(blocks.filled(page.read_text(encoding="utf-8"), found), encoding="utf-8")


main()
