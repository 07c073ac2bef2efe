"""One rank: build the step, time it, look into it, write what it saw. Imports schema/ and project/."""
