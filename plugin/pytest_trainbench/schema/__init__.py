"""The words that every other folder shares: cases, records, metrics, jobs. Imports nothing but the standard library."""
