"""The user's project: its root, its name, its git repository and digests of its code. Imports nothing but the standard
library."""
