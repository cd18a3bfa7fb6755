"""The prompts, their order and their arrivals are those of llm-d's published benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvscope.synth.profiles import by_name


def test_prompts_and_what_they_share() -> None:
    records = list(by_name("shared-prefix-groups").generate(requests=1_500, seed=1))
    prompts = {tuple(record.hash_ids) for record in records}
    assert len(prompts) == 750
    assert {len(prompt) for prompt in prompts} == {450}
    assert len({prompt[:375] for prompt in prompts}) == 150
    assert len({block for prompt in prompts for block in prompt}) * 16 == 1_800_000
    assert {(record.input_length, record.output_length) for record in records} == {(7_200, 1_000)}


def test_every_stage_sends_the_prompts_in_one_shuffled_order_from_the_first_on() -> None:
    users = [
        record.user_id for record in by_name("shared-prefix-groups").generate(requests=900, seed=1)
    ]
    assert sorted(users[:750]) == list(range(750))
    assert users[:750] != sorted(users[:750])
    assert users[750:810] == users[:60]
    assert users[810:] == users[:90]


def test_arrivals_follow_the_stages_and_repeat_the_last_one() -> None:
    records = by_name("shared-prefix-groups").generate(requests=25_000, seed=1)
    times = np.array([record.timestamp for record in records])
    for start_s, end_s, sent in ((0, 50, 750), (50, 70, 60), (477, 502, 1500), (502, 527, 1500)):
        assert np.sum((times >= start_s) & (times < end_s)) == sent
    assert np.sum(times < 502) == 17_084
    halves = np.sum(times < 25), np.sum((times >= 25) & (times < 50))
    assert abs(halves[0] - halves[1]) < 5 * 750**0.5
    gaps = np.diff(times[times < 50])
    assert 0.8 < gaps.std() / gaps.mean() < 1.2  # as those of a Poisson process


def test_a_question_that_fills_no_block_belongs_to_its_prompt_alone() -> None:
    profile: Any = by_name("shared-prefix-groups")
    small = replace(profile, groups=1, users_per_group=2, shared_tokens=40, question_tokens=10)
    first, second = small.generate(requests=2, seed=0)
    assert first.hash_ids[:2] == second.hash_ids[:2]
    assert not set(first.hash_ids[2:]) & set(second.hash_ids)
    assert len(first.hash_ids) == 4
