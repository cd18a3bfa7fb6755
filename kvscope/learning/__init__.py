"""Learners: they fit the tables that policies read. One folder a learner, and shared parts."""
