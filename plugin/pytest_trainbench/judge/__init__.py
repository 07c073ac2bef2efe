"""From traces to a verdict, in pure functions. Imports store/, hardware/ and schema/; never rank/ or launch/."""
