"""Exact replay of a trace in a cache of a given capacity."""
