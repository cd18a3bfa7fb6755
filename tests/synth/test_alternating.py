"""Chats and documents swap roles at the end of every phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.profiles import PROFILES


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
