"""Training through transformers' own ``Trainer``."""
