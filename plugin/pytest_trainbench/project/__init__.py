"""The user's project: its root, its name, its git repository and digests of its code. Imports only the standard
library."""
