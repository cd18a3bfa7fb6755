"""The profiles of the benchmarks: roles that swap, scans that come when due, chats by day."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from benchmarks.profiles import PROFILES
from kvscope.synth.base import ROOT


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
