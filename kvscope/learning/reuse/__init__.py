"""Learner of `wa`: how soon the blocks of each category are reused."""
