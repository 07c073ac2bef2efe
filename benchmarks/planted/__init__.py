"""Realistic slowdowns, planted in the suite: do the affected rows turn red, and do the others stay green?

    python -m benchmarks.planted run planted.jsonl --hw h200
    python -m benchmarks.planted page benchmarks/planted/runs/*.jsonl planted.jsonl > docs/planted.md

``run`` measures and ``page`` prints, so one page can combine several machines. Every run is the command that a user
types, in a process of its own. It compares with the baselines that the first run of its file stores. Each run is
written as soon as it ends, so an interrupted command loses only its last run. For a machine with less time, ``--nights
5 --faults`` does half of the unchanged runs and plants no fault.
"""
