"""Logs with prompts in them become a trace of salted hashes."""
