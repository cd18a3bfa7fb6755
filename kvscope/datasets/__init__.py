"""Traces larger than memory: folders of shards that are built and analyzed one by one, exactly.

A prefix trie divides into subtrees at its root, and below prefixes that many requests share
(`cuts`). So the paths of a trace are written to files by shard while it is read (`reading`), each
shard becomes a trie (`shards`), and the results of the shards add up (`paths`). `ingest` runs these
steps, each a function of files to files that any process can run (`executor`); finished steps are
not repeated.
"""
