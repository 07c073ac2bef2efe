"""The machine: the table of accelerators, the devices found, and the environment. Imports schema/."""
