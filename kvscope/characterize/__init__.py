"""Queries to facts: what is in a trace, by category and over time."""

from kvscope.characterize.facts import Characterization
from kvscope.characterize.summary import STEPS, Step, characterize

__all__ = ["STEPS", "Characterization", "Step", "characterize"]
