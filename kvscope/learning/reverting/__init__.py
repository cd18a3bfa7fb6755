"""Learner of `tlru` and `threshold-lru` with a guard: their own order, or LRU, in force."""
