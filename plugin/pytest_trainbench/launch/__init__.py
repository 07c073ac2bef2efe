"""Start ranks, watch them, and collect what they wrote. Imports rank/ and the folders below it."""
