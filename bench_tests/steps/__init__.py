"""The step builders. A test names one, and each rank calls it."""
