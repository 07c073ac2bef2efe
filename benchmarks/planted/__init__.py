"""Slowdowns as real code has them, planted in the suite: is the right row red, and is none red where nothing changed?

    python -m benchmarks.planted run planted.jsonl --hw h200
    python -m benchmarks.planted page benchmarks/planted/runs/*.jsonl planted.jsonl > docs/planted.md

The first measures and the second prints, so that one page may be of several machines. Every run is the command that
users type, in a process of its own, against baselines that the first run of its file stores. Each run is written as
soon as it ends: where a machine is not to be had for so long, ``--nights 5 --faults`` does half of the first part and
nothing of the second, and what was cut short loses its last run only.
"""
