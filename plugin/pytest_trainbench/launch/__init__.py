"""Start ranks, watch them, and collect their files. Imports rank/, hardware/, project/ and schema/."""
