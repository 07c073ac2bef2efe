"""The work of one rank: build the step, time it, profile it, write the trace. Imports schema/ and project/."""
