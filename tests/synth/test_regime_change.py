"""Traffic that changes its mind does so, when it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvscope.synth.profiles import by_name


def test_habits_are_traded_at_the_change() -> None:
    """Chats go on before it and documents after it, each about eight times as often."""
    records = list(by_name("regime-change").generate(requests=5_000, seed=1))
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
    profile: Any = by_name("regime-change")
    records = list(profile.generate(requests=2_500, seed=3))
    steady = list(replace(profile, change_s=1e9).generate(requests=2_500, seed=3))
    early = [record for record in records if record.timestamp <= 3_600.0]
    assert 1_000 < len(early) < len(records)
    assert early == steady[: len(early)]
    assert records != steady
