"""Whole numbers: distributions of the tokens of a prompt, the turns of a conversation."""

import math
from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator


class Counts(Protocol):
    """A distribution of counts."""

    def draw(self, rng: Generator) -> int:
        """One count."""
        ...


@dataclass(frozen=True)
class Lognormal:
    """Skewed around `mean`: what prompts and answers of people look like.

    `sigma` is the standard deviation of ln(count); `mean` is the mean before the values
    are cut off at `maximum`.
    """

    mean: float
    sigma: float = 0.8
    maximum: int = 32_768

    def draw(self, rng: Generator) -> int:
        """One count in [1, maximum]."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        return max(1, min(self.maximum, round(rng.lognormal(mu, self.sigma))))


@dataclass(frozen=True)
class Geometric:
    """Memoryless around `mean`: each one is the last with probability 1/mean."""

    mean: float

    def draw(self, rng: Generator) -> int:
        """One count of at least 1."""
        return int(rng.geometric(1 / self.mean))


@dataclass(frozen=True)
class Fixed:
    """Always the same count: for traces whose arithmetic can be done by hand."""

    value: int

    def draw(self, rng: Generator) -> int:
        """The count."""
        return self.value
