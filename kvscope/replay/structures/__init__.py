"""Data structures of the replay kernels."""
