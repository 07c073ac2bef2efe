"""From verdicts to text. Pure: nothing here runs, stores or judges anything."""
