"""Start ranks, watch them, and collect what they wrote. Imports rank/, hardware/, project/ and schema/."""
