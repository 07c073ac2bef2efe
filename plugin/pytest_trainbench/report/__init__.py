"""Turns verdicts into text. The functions are pure: they run, store and judge nothing. Imports judge/, store/,
hardware/, project/ and schema/."""
