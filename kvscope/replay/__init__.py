"""Exact replay: what a cache of a given capacity makes of a trace."""
