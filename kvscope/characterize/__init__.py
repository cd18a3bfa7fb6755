"""Queries to facts: what is in a trace, by category and over time."""
