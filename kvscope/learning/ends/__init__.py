"""Learner of `tlru-learned`: which conversations end."""
