"""Which replica serves a request: one file a router, plain functions without numba."""
