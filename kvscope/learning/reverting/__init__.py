"""Whether a policy's own order is in force, or LRU, as a guard takes it."""
