"""The step builders: what a test names, and each rank calls."""
