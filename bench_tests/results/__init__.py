"""Pages made from the stored baselines."""
