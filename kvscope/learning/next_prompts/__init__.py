"""Learner of `etlru`, and of the parameters of the T-LRU family: how long next prompts are."""
