"""Eviction policies: which block leaves when the cache is full; one file a policy.

A docstring states a policy's key; the lowest key is evicted first. In it r is the number of the
request that last touched the block, d the block's depth.
"""
