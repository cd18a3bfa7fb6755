"""Convert logs with prompts to a trace of salted hashes."""
