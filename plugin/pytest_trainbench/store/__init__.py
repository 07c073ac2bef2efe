"""What is kept between runs: baselines and the history. Imports schema/, project/ and hardware/."""
