"""Times to live (TTL) of cached blocks: hits and memory of every TTL, and what providers charge."""
