"""Simulated replicas behind a router: the replica of each request, its hits and its times."""
