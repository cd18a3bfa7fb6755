"""Eviction policies: which block leaves when the cache is full; one file a policy."""
