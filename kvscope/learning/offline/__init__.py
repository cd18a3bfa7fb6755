"""Fitting to a whole trace: shared parts of the learners' offline halves, which use `replay`."""
