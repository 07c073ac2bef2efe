"""The machine: the table of accelerators, what is here, and the environment. Imports schema/ and project/."""
