"""How long blocks should live: hits and memory of every TTL, the best ones, prices."""
