"""Scans come when they are due, bring much, and are never asked for again."""

from __future__ import annotations

from collections import Counter

from benchmarks.profiles import PROFILES
from kvscope.synth.base import ROOT


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
