"""Chats by day, jobs by night, each with what it repeats."""

from __future__ import annotations

from benchmarks.profiles import PROFILES


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
