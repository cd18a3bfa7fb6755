"""How long the first token takes: latency profiles, and their measurement."""
