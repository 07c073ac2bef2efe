"""Data types that all other folders share: cases, records, metrics, jobs. Imports only the standard library."""
