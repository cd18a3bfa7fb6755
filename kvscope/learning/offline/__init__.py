"""Fitting to a whole trace: what the learners' offline halves share, above `replay`."""
