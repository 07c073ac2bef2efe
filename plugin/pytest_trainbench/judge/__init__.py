"""From traces to a verdict, in pure functions. Imports store/, hardware/, project/ and schema/; never rank/ or
launch/."""
