"""Slowdowns as real code has them, planted in the suite: is the right row red, and is none red where nothing changed?

    python -m benchmarks.planted --hw h200 > docs/planted.md

Every run is the command that users type, in a process of its own, against a baseline made at the start. Where a
machine is not to be had for so long, ``--nights 5 --faults`` does half of the first part and nothing of the second.
"""
