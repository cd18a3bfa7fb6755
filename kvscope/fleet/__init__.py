"""Replicas behind a router, simulated: who serves a request, what it hits, how long it waits."""
