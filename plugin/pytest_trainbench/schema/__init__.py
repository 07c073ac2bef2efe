"""Data types that all other folders share: cases, records, metrics, jobs. Imports nothing but the standard library."""
