"""Pages made from the stored baselines: the results page and its plots."""
