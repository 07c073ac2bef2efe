"""What is made of the stored baselines: the results page and its pictures."""
