"""Facts of a trace, from queries: by category and over time."""
