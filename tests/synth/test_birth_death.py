"""The conversation model's moments are those of its parameters.

Bounds are four standard errors (a chance of 1 in 16,000 each), and the seed is fixed.
"""

import math
from collections import defaultdict

import pytest

from kvscope.synth.base import ROOT, Fixed, Record
from kvscope.synth.birth_death import BirthDeath

REQUESTS = 20_000
MODEL = BirthDeath(prompt_tokens=Fixed(1), output_tokens=Fixed(1))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Return a trace of the default rates, with the shortest of prompts."""
    return list(MODEL.generate(requests=REQUESTS, seed=11))


def test_births(records: list[Record]) -> None:
    """n births in t seconds: a Poisson count of standard error sqrt(n)."""
    births = sum(record.parent_chat_id == ROOT for record in records)
    expected = MODEL.birth_rate_per_s * records[-1].timestamp
    assert abs(births - expected) < 4 * math.sqrt(expected)


def test_turns(records: list[Record]) -> None:
    """Turns are geometric: the mean is 1 + λ/μ, the standard deviation sqrt(λ/μ (1 + λ/μ))."""
    ratio = MODEL.turn_rate_per_s / MODEL.death_rate_per_s
    turns: defaultdict[int, int] = defaultdict(int)
    settled_s = records[-1].timestamp - 20 / MODEL.death_rate_per_s  # all but e^-20 are over
    for record in records:
        turns[record.user_id] += 1
    ended = {
        record.user_id
        for record in records
        if record.parent_chat_id == ROOT and record.timestamp < settled_s
    }
    mean = sum(turns[user] for user in ended) / len(ended)
    error = math.sqrt(ratio * (1 + ratio) / len(ended))
    assert abs(mean - (1 + ratio)) < 4 * error


def test_gaps(records: list[Record]) -> None:
    """Time between turns is exponential with rate λ + μ: mean and deviation are equal.

    The deviation's own error is that of a sample variance with kurtosis 9: sqrt(2/n) of it.
    """
    time_s = {record.chat_id: record.timestamp for record in records}
    gaps = [
        record.timestamp - time_s[record.parent_chat_id]
        for record in records
        if record.parent_chat_id != ROOT
    ]
    expected_s = 1 / (MODEL.turn_rate_per_s + MODEL.death_rate_per_s)
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert abs(mean - expected_s) < 4 * expected_s / math.sqrt(len(gaps))
    assert abs(deviation - expected_s) < 4 * expected_s * math.sqrt(2 / len(gaps))


def test_nothing_is_shared() -> None:
    """No block belongs to two conversations."""
    owner: dict[int, int] = {}
    for record in BirthDeath().generate(requests=2_000, seed=3):
        for block in record.hash_ids:
            assert owner.setdefault(block, record.user_id) == record.user_id


def test_history() -> None:
    """A prompt is the history and the new tokens: with fixed counts, turn k has kQ + (k-1)O."""
    model = BirthDeath(prompt_tokens=Fixed(10), output_tokens=Fixed(7))
    for record in model.generate(requests=500, seed=3):
        assert record.input_length == 10 * record.turn + 7 * (record.turn - 1)
