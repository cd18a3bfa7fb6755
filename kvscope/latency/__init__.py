"""Latency profiles, from which the time to first token (TTFT) follows, and their measurement."""
