"""Inference servers from the outside: start, send requests, stop. Nothing here knows traces."""
