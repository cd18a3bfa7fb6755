"""The formats of logs with prompts, one a file."""
