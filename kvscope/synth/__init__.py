"""Seeded generators of hashed request traces; no real user data is involved."""
