"""Replays nights through judges, ours and others', and counts false alarms, slowdowns found and launches spent.

``python -m benchmarks.detection`` prints docs/detection.md, ``--quick`` the same with a fiftieth of the nights.
docs/measuring.md says what the judge promises.
"""
