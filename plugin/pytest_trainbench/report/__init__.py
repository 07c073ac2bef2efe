"""From verdicts to text, in pure functions: nothing here runs, stores or judges. Imports every folder but rank/ and
launch/."""
