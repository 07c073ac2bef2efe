"""Replays nights through judges, ours and those of other tools. Counts false alarms, found slowdowns and started
launches.

``python -m benchmarks.detection`` prints docs/detection.md; ``--quick`` uses a fiftieth of the nights.
docs/measuring.md says what our judge promises.
"""
