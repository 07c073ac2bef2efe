"""From verdicts to text, in pure functions: nothing here runs, stores or judges. Imports judge/, store/, hardware/,
project/ and schema/."""
