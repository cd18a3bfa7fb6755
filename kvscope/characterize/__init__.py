"""Statistics of a trace, by category and over time: traffic, turns, reuse and its stability."""
