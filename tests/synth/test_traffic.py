"""The two published kinds of traffic, in the figures that need no cache to be counted.

Bounds are wide: seeds are fixed, and what is tested is that a profile still is what its docstring
says, not its third digit.
"""

from collections import Counter

from kvscope.synth.base import ROOT
from kvscope.synth.profiles import by_name


def test_to_c() -> None:
    """Half of the requests continue a conversation, most conversations are single-turn."""
    records = list(by_name("to-c").generate(requests=6_000, seed=1))
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
    records = list(by_name("to-b").generate(requests=6_000, seed=1))
    assert sum(record.parent_chat_id != ROOT for record in records) < 0.002 * len(records)
    assert len(records) / records[-1].timestamp > 10
    assert {record.type for record in records} == {"api"}


def test_agent() -> None:
    """Contexts grow beyond 100,000 tokens behind a few shared heads."""
    records = list(by_name("agent").generate(requests=1_500, seed=1))
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
