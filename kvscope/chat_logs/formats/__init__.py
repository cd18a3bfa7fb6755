"""The formats of logs with prompts, one per file."""
