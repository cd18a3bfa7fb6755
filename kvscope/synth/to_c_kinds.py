"""Request types of consumer traffic, and the turn buckets their habits are given by."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.synth.counts import Counts, Lognormal

FIRST_TURN_OF_BUCKET = (1, 2, 3, 4, 7)


def bucket(turn: int) -> int:
    """Index of the turn bucket (1, 2, 3, 4-6, 7+) of a turn, which counts from 1."""
    return sum(turn >= first for first in FIRST_TURN_OF_BUCKET) - 1


@dataclass(frozen=True)
class Kind:
    """A request type: how often, how it goes on, how long people think, how much they send.

    `share` is of the conversations. Tuples have an entry a turn bucket (1, 2, 3, 4-6, 7+):
    `gap_mean_s` is the mean time from a turn in the bucket to the next turn,
    `prompt_tokens` what a turn in the bucket adds. `closing_tokens` replaces it in a
    conversation's last turn. `second_turn_scale` multiplies the probability of a second turn.
    `product_prompt_share` is the share of conversations behind the product's own system prompt.
    """

    type: str
    share: float
    gap_mean_s: Sequence[float]
    prompt_tokens: Sequence[Counts]
    closing_tokens: Counts
    output_tokens: Counts
    second_turn_scale: float = 1.0
    product_prompt_share: float = 0.0


def gaps(scale: float) -> tuple[float, ...]:
    """Mean s to the next turn, a bucket each, as multiples of a text conversation's."""
    return tuple(scale * mean_s for mean_s in (130.0, 145.0, 165.0, 200.0, 490.0))


def prompts(first: float, follow_up: float) -> tuple[Counts, ...]:
    """Tokens that a turn adds: a question, up to five meatier follow-ups, then small talk."""
    middle = Lognormal(follow_up, 1.0)
    return (Lognormal(first, 0.6), middle, middle, middle, Lognormal(340, 0.8))


# The order of the gaps is the paper's: multimodal < text < search < file.
KINDS = (
    Kind(
        "text", 0.775, gaps(1.0), prompts(450, 500), Lognormal(3_750, 0.9), Lognormal(330, 0.7),
        product_prompt_share=0.15,
    ),
    Kind("search", 0.08, gaps(1.25), prompts(840, 560), Lognormal(4_000, 0.9), Lognormal(380, 0.7)),
    Kind("file", 0.06, gaps(1.5), prompts(1_400, 640), Lognormal(4_500, 0.9), Lognormal(380, 0.7)),
    Kind(
        "multimodal", 0.07, gaps(0.6), prompts(560, 350), Lognormal(2_500, 0.9),
        Lognormal(200, 0.7), second_turn_scale=0.5, product_prompt_share=0.15,
    ),
    Kind("api", 0.015, gaps(0.5), prompts(650, 440), Lognormal(3_000, 0.9), Lognormal(250, 0.7)),
)  # fmt: skip
