"""Profiles have the figures that they promise."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchmarks.profiles import PROFILES
from benchmarks.sample_profiles import BirthDeath
from kvscope.synth.base import ROOT, Fixed, Record

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


def test_habits_are_traded_at_the_change() -> None:
    """Chats go on before it and documents after it, each about eight times as often."""
    records = list(PROFILES["regime-change"].generate(requests=5_000, seed=1))
    goes_on = {record.parent_chat_id for record in records}
    shares = {}
    for kind in ("chat", "document"):
        for before in (True, False):
            some = [
                record.chat_id in goes_on
                for record in records
                if record.type == kind and (record.timestamp < 3_600.0) == before
                if record.timestamp < records[-1].timestamp - 900.0
            ]
            shares[kind, before] = sum(some) / len(some)
    assert 0.75 < shares["chat", True] < 0.83
    assert 0.75 < shares["document", False] < 0.83
    assert 0.06 < shares["document", True] < 0.14
    assert 0.06 < shares["chat", False] < 0.14


def test_without_a_change_the_beginning_is_the_same() -> None:
    """The time of the change is all that it changes."""
    profile: Any = PROFILES["regime-change"]
    records = list(profile.generate(requests=2_500, seed=3))
    steady = list(replace(profile, change_s=1e9).generate(requests=2_500, seed=3))
    early = [record for record in records if record.timestamp <= 3_600.0]
    assert 1_000 < len(early) < len(records)
    assert early == steady[: len(early)]
    assert records != steady


SYSTEM = 800 // 16


def firsts(**changes: Any) -> list[int]:
    """Return the first block of the first passage of 5,000 requests."""
    profile: Any = PROFILES["retrieval"]
    profile = replace(profile, **changes)
    return [record.hash_ids[SYSTEM] for record in profile.generate(requests=5_000, seed=1)]


def test_few_passages_take_most_requests() -> None:
    asked = Counter(firsts()).most_common()
    assert len(asked) > 600
    assert 0.53 < sum(count for _, count in asked[:60]) / 5_000 < 0.58


def test_popularity_drifts() -> None:
    """Without drift the most asked passage stays; with it, others take its place."""

    def leaders(passages: list[int]) -> int:
        parts = [passages[at : at + 500] for at in range(0, 5_000, 500)]
        first = [Counter(part).most_common(1)[0][0] for part in parts]
        return sum(before != after for before, after in pairwise(first))

    assert leaders(firsts(drift_s=0.0)) == 0
    assert leaders(firsts(drift_s=20.0)) > 2


def test_what_requests_share() -> None:
    records = list(PROFILES["retrieval"].generate(requests=2_000, seed=3))
    assert len({tuple(record.hash_ids[:SYSTEM]) for record in records}) == 1
    assert len({record.hash_ids[-1] for record in records}) == 2_000
    parents: dict[int, int] = {}
    for record in records:
        for above, block in pairwise(record.hash_ids):
            assert parents.setdefault(block, above) == above


def test_more_passages_a_request_than_there_are() -> None:
    profile: Any = PROFILES["retrieval"]
    with pytest.raises(ValueError, match="passages_a_request"):
        replace(profile, passages=2, passages_a_request=3)


def test_prompts_and_what_they_share() -> None:
    records = list(PROFILES["shared-prefix-groups"].generate(requests=1_500, seed=1))
    prompts = {tuple(record.hash_ids) for record in records}
    assert len(prompts) == 750
    assert {len(prompt) for prompt in prompts} == {450}
    assert len({prompt[:375] for prompt in prompts}) == 150
    assert len({block for prompt in prompts for block in prompt}) * 16 == 1_800_000
    assert {(record.input_length, record.output_length) for record in records} == {(7_200, 1_000)}


def test_every_stage_sends_the_prompts_in_one_shuffled_order_from_the_first_on() -> None:
    users = [
        record.user_id for record in PROFILES["shared-prefix-groups"].generate(requests=900, seed=1)
    ]
    assert sorted(users[:750]) == list(range(750))
    assert users[:750] != sorted(users[:750])
    assert users[750:810] == users[:60]
    assert users[810:] == users[:90]


def test_arrivals_follow_the_stages_and_repeat_the_last_one() -> None:
    records = PROFILES["shared-prefix-groups"].generate(requests=25_000, seed=1)
    times = np.array([record.timestamp for record in records])
    for start_s, end_s, sent in ((0, 50, 750), (50, 70, 60), (477, 502, 1500), (502, 527, 1500)):
        assert np.sum((times >= start_s) & (times < end_s)) == sent
    assert np.sum(times < 502) == 17_084
    halves = np.sum(times < 25), np.sum((times >= 25) & (times < 50))
    assert abs(halves[0] - halves[1]) < 5 * 750**0.5
    gaps = np.diff(times[times < 50])
    assert 0.8 < gaps.std() / gaps.mean() < 1.2  # as those of a Poisson process


def test_a_question_that_fills_no_block_belongs_to_its_prompt_alone() -> None:
    profile: Any = PROFILES["shared-prefix-groups"]
    small = replace(profile, groups=1, users_per_group=2, shared_tokens=40, question_tokens=10)
    first, second = small.generate(requests=2, seed=0)
    assert first.hash_ids[:2] == second.hash_ids[:2]
    assert not set(first.hash_ids[2:]) & set(second.hash_ids)
    assert len(first.hash_ids) == 4


def test_to_c() -> None:
    """Half of the requests continue a conversation, most conversations are single-turn."""
    records = list(PROFILES["to-c"].generate(requests=6_000, seed=1))
    children = sum(record.parent_chat_id != ROOT for record in records)
    assert 0.47 < children / len(records) < 0.55
    types = Counter(record.type for record in records)
    assert 0.74 < types["text"] / len(records) < 0.82
    single = [r.input_length + r.output_length for r in records if r.parent_chat_id == ROOT]
    multi = [r.input_length + r.output_length for r in records if r.parent_chat_id != ROOT]
    assert 0.85 * 973 < sum(single) / len(single) < 1.15 * 973
    assert 0.75 * 5_953 < sum(multi) / len(multi) < 1.25 * 5_953
    assert max(record.turn for record in records) <= 232


def test_to_b() -> None:
    """Hardly any request has a parent, rates are above ten a second."""
    records = list(PROFILES["to-b"].generate(requests=6_000, seed=1))
    assert sum(record.parent_chat_id != ROOT for record in records) < 0.002 * len(records)
    assert len(records) / records[-1].timestamp > 10
    assert {record.type for record in records} == {"api"}


def test_agent() -> None:
    """Contexts grow beyond 100,000 tokens behind a few shared heads."""
    records = list(PROFILES["agent"].generate(requests=1_500, seed=1))
    assert max(record.input_length for record in records) > 100_000
    mains = [record for record in records if record.type == "agent"]
    assert len({record.hash_ids[0] for record in mains}) <= 3
    assert any(record.type == "subagent" for record in records)
    after = {record.parent_chat_id: record for record in records}
    restarted = [
        record
        for record in records
        if record.chat_id in after and after[record.chat_id].input_length < record.input_length
    ]
    assert restarted


def test_roles_swap_every_phase() -> None:
    records = list(PROFILES["alternating"].generate(requests=5_000, seed=1))
    continues = {record.parent_chat_id for record in records}
    for phase in (0, 1):
        for kind in ("chat", "document"):
            some = [
                record.chat_id in continues
                for record in records
                if record.type == kind and record.timestamp // 600 % 2 == phase
                if record.timestamp < records[-1].timestamp - 900.0
            ]
            share = sum(some) / len(some)
            assert 0.75 < share < 0.85 if (kind == "chat") == (phase == 0) else 0.06 < share < 0.14


def test_the_first_two_phases_are_a_change_of_regime() -> None:
    alternating: Any = PROFILES["alternating"]
    once: Any = PROFILES["regime-change"]
    both = (replace(profile, change_s=900.0) for profile in (alternating, once))
    first, second = (list(profile.generate(requests=1_500, seed=2)) for profile in both)
    early = [record for record in first if record.timestamp <= 1_800.0]
    assert 500 < len(early) < 1_400
    assert early == second[: len(early)]
    assert first != second


def test_scans_and_chats() -> None:
    records = list(PROFILES["scan"].generate(requests=5_000, seed=1))
    scans = [record for record in records if record.type == "scan"]
    assert 0.2 < len(scans) / len(records) < 0.31
    tokens = sum(record.input_length for record in scans)
    assert 0.31 < tokens / sum(record.input_length for record in records) < 0.43
    assert all(record.timestamp % 1_800 < 900 for record in scans)
    assert min(record.timestamp for record in scans) >= 1_800
    touched = Counter(block for record in records for block in record.hash_ids)
    assert {touched[block] for record in scans for block in record.hash_ids} == {1}
    continues = {record.parent_chat_id for record in records} - {ROOT}
    chats = [
        record.chat_id in continues
        for record in records
        if record.type == "chat" and record.timestamp < records[-1].timestamp - 900
    ]
    assert 0.75 < sum(chats) / len(chats) < 0.85


def test_chats_by_day_and_jobs_by_night() -> None:
    records = list(PROFILES["time-of-day"].generate(requests=13_000, seed=1))
    hours = {
        begins: [
            record.type == "chat"
            for record in records
            if begins <= record.timestamp / 3_600 < begins + 6
        ]
        for begins in (3, 15)
    }
    share = {begins: sum(chats) / len(chats) for begins, chats in hours.items()}
    assert share[3] > 0.85
    assert share[15] < 0.2


def test_the_calls_of_a_job_begin_with_its_prompt() -> None:
    records = list(PROFILES["time-of-day"].generate(requests=2_000, seed=2))
    calls: dict[int, list[list[int]]] = {}
    for record in records:
        if record.type == "api":
            calls.setdefault(record.user_id, []).append(record.hash_ids)
    jobs = [prompts for prompts in calls.values() if len(prompts) > 10]
    assert len(jobs) > 3
    for prompts in jobs:
        shared = sum(len(set(column)) == 1 for column in zip(*prompts, strict=False))
        assert shared > 10
        assert len({prompt[-1] for prompt in prompts}) == len(prompts)
