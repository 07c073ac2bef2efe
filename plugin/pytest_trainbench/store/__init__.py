"""Files that outlive a run: baselines and the history. Imports schema/, project/ and hardware/."""
