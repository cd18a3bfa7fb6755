"""Fitting from a whole trace: what all learners share above `replay`."""
