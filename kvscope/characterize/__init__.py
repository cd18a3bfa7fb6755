"""Queries to facts: what is in a trace, by category and over time."""

from kvscope.characterize.facts import Characterization
from kvscope.characterize.summary import characterize

__all__ = ["Characterization", "characterize"]
