"""Learner of `gittins`: how soon each class of requests returns."""
