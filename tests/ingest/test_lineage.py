"""The trie, the reuse and the lineage of a trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from kvscope.core.hits import HitDefinition
from kvscope.ingest.build import Built
from kvscope.ingest.formats.base import Request
from kvscope.ingest.lineage import _find_longest_prefix as parents_kernel
from kvscope.ingest.trie import Trie
from kvscope.replay.curve import lru_curve
from tests import small_traces
from tests.oracles import lineage, lru


@settings(deadline=None, max_examples=120)
@given(st.data(), small_traces.SIZES)
def test_inferred_lineage_equals_the_oracle(data: st.DataObject, size: int) -> None:
    """Parents, conversations and turns are those of a scan of all earlier requests."""
    trace = data.draw(small_traces.requests(size, most=25))
    made = small_traces.built(trace, size)
    if made.trie.count > 1:
        assert made.lineage == "inferred"
        parents = lineage.inferred(trace, size)
    else:
        assert made.lineage == "none"
        parents = [None] * len(trace)
    assert small_traces.parents(made) == parents
    found = zip(made.requests["conversation"], made.requests["turn"], strict=True)
    assert list(found) == lineage.turns(parents)


@settings(deadline=None, max_examples=120)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.none() | st.integers(0, 8) | st.just("nobody")),
        min_size=1,
        max_size=20,
    )
)
def test_given_lineage_equals_the_oracle(told: list[tuple[int, int | str | None]]) -> None:
    """Missing parents, cycles, loops onto oneself, twice the same id, disorder: all tolerated."""
    trace = [
        Request(input_tokens=1, output_tokens=1, chat_id=chat, parent_chat_id=parent)
        for chat, parent in told
    ]
    made = small_traces.built(trace, 16)
    parents = lineage.given(trace)
    assert made.lineage == ("given" if any(parent is not None for _, parent in told) else "none")
    assert small_traces.parents(made) == parents
    found = zip(made.requests["conversation"], made.requests["turn"], strict=True)
    assert list(found) == lineage.turns(parents)
    counts = lineage.impossible(trace, parents)
    missing = counts.pop("not in the trace", [])
    noted = [note for note in made.notes if "parents" in note]
    stated = sum(parent not in {None, -1} for _, parent in told)
    many = len(missing) > 0.1 * stated
    assert len(noted) == bool(counts) + many
    for reason, requests in counts.items():
        assert f" {len(requests)} {reason} (request {requests[0] + 1} of the file" in noted[0]
    if many:
        assert noted[-1].startswith(f"{len(missing)} of {stated} parents are not in the trace:")


def test_parents_that_cannot_be_are_counted_with_the_first_of_each_kind() -> None:
    """A parent that is its request, parents that come later (as on a cycle) or never: by reason."""
    links = [(1, 1), (2, 4), (3, 2), (4, 3), (5, 6), (6, -1), (7, 99), (8, 7), (9, 9)]
    trace = [
        Request(input_tokens=1, output_tokens=1, chat_id=chat, parent_chat_id=parent)
        for chat, parent in links
    ]
    made = small_traces.built(trace, 16)
    assert small_traces.parents(made) == [None, None, 1, 2, None, None, None, 6, None]
    assert made.notes[0] == (
        "parents that cannot be: 2 the request itself (request 1 of the file has parent 1), 2 later"
        " than the request (request 2 of the file has parent 4): correct or remove them"
    )
    missing = "1 of 8 parents are not in the trace: these requests begin conversations"
    assert made.notes[1] == missing


def test_the_digest_of_a_parents_name_is_not_shown() -> None:
    """A name that is no number is a digest by then, which says nothing."""
    trace = [Request(input_tokens=1, output_tokens=1, chat_id="a", parent_chat_id="a")]
    assert small_traces.built(trace, 16).notes[0] == (
        "parents that cannot be: 1 the request itself (request 1 of the file): correct or remove"
        " them"
    )


def test_a_parent_that_arrives_later_is_none() -> None:
    """Lines in reverse: order of arrival decides, so the child finds its parent after sorting."""
    child = Request(input_tokens=2, output_tokens=0, chat_id=2, parent_chat_id=1, arrival_s=5.0)
    parent = Request(input_tokens=1, output_tokens=0, chat_id=1, parent_chat_id=2, arrival_s=1.0)
    made = small_traces.built([child, parent], 16)
    assert list(made.requests["chat_id"]) == [1, 2]
    assert small_traces.parents(made) == [None, 0]
    assert made.out_of_order == 1


def test_the_turn_that_the_trace_tells_wins() -> None:
    """A trace that begins amid conversations knows its turns better than its lines do."""
    trace = [
        Request(input_tokens=1, output_tokens=0, chat_id=1, turn=7),
        Request(input_tokens=1, output_tokens=0, chat_id=2, parent_chat_id=1),
    ]
    assert list(small_traces.built(trace, 16).requests["turn"]) == [7, 2]


def test_sessions_are_conversations() -> None:
    """Requests of one session follow each other; two sessions never mix."""
    trace = [
        Request(input_tokens=1, output_tokens=0, session_id=name, arrival_s=float(at))
        for at, name in enumerate("abab")
    ]
    made = small_traces.built(trace, 16)
    assert made.lineage == "given"
    assert small_traces.parents(made) == [None, None, 0, 1]


def two_turns(**told: object) -> list[Request]:
    """Return a prompt and its continuation, both with these fields besides."""
    first = {"input_tokens": 2, "output_tokens": 0, "hash_ids": [1, 2]}
    second = {"input_tokens": 3, "output_tokens": 0, "hash_ids": [1, 2, 3]}
    return [Request(**(fields | told)) for fields in (first, second)]  # type: ignore[arg-type]


def test_chat_ids_without_parents_tell_no_conversation() -> None:
    """A trace that names chats and never a parent is inferred; one that says "none" is not."""
    trace = two_turns()
    for number, request in enumerate(trace):
        request.chat_id = number
    made = small_traces.built(trace, 1)
    assert (made.lineage, small_traces.parents(made)) == ("inferred", [None, 0])
    for request in trace:
        request.parent_chat_id = -1
    made = small_traces.built(trace, 1)
    assert (made.lineage, small_traces.parents(made)) == ("given", [None, None])


def test_a_chat_called_minus_one_is_nobodys_parent() -> None:
    """-1 stands for "no parent", also where a chat has that id."""
    trace = two_turns(chat_id=-1, parent_chat_id=-1)
    assert small_traces.parents(small_traces.built(trace, 1)) == [None, None]


def test_what_rows_without_hashes_tell_is_not_the_traces_lineage() -> None:
    """One session, or one parent, on a row without hashes leaves the hashed ones to be inferred."""
    stray = Request(input_tokens=1, output_tokens=0)
    for told in ({"session_id": "s"}, {"chat_id": 5, "parent_chat_id": -1}):
        for name, value in told.items():
            setattr(stray, name, value)
        made = small_traces.built([*two_turns(), stray], 1)
        assert (made.lineage, small_traces.parents(made)) == ("inferred", [None, 0, None])
    pair = [Request(input_tokens=1, output_tokens=0, session_id="s") for _ in range(2)]
    assert small_traces.built([*two_turns(), *pair], 1).lineage == "inferred"
    assert small_traces.built(pair, 1).lineage == "given"


def test_one_session_among_many_requests_is_no_lineage() -> None:
    """A session of one request says nothing of the others; with a second request it does."""
    trace = two_turns()
    trace[0].session_id = "s"
    assert small_traces.built(trace, 1).lineage == "inferred"
    trace[1].session_id = "t"
    assert small_traces.built(trace, 1).lineage == "given"
    trace = [*two_turns(), *two_turns(session_id="s")]
    assert small_traces.built(trace, 1).lineage == "given"


def test_a_head_that_four_continue_begins_no_conversation() -> None:
    """Three continuations are branches of a conversation, four make a shared head."""
    head = Request(input_tokens=2, output_tokens=0, hash_ids=[1, 2])
    tails = [Request(input_tokens=3, output_tokens=0, hash_ids=[1, 2, n]) for n in range(4)]
    assert small_traces.parents(small_traces.built([head, *tails[:3]], 1)) == [None, 0, 0, 0]
    assert small_traces.parents(small_traces.built([head, *tails], 1)) == [None] * 5


@settings(deadline=None, max_examples=120)
@given(st.data(), small_traces.SIZES, st.booleans())
def test_carried_outputs_equal_the_oracle(data: st.DataObject, size: int, chats: bool) -> None:
    """What is known to be cached after each turn, and how much there is in all."""
    trace = data.draw(small_traces.requests(size, most=20, chats=chats))
    made = small_traces.built(trace, size)
    parents = small_traces.parents(made)
    everything = HitDefinition("default")
    for at in range(len(trace)):
        known = lru.known_after(trace, parents, at, size)
        assert made.requests["carried_blocks"][at] == len(known)
        assert small_traces.path(made, int(made.requests["carried_leaf"][at])) == known
        kept = lru.kept(trace, parents, at, size, everything)
        assert made.requests["cached_blocks"][at] == len(kept)


class Counted(list[int]):
    """A column that counts how often an entry of it is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        """Return an entry."""
        self.reads += 1
        return super().__getitem__(index)


def reads_of_histories(histories: list[int], questions: list[int]) -> int:
    """Return how often a history is read where many requests end at one block.

    After each of these come as many requests that continue it as there are questions: the inputs.
    """
    inputs, history, leaf = [], [], []
    for length in histories:
        inputs, history, leaf = [*inputs, 16], [*history, length], [*leaf, 1]
        for tokens in questions:
            inputs, history, leaf = [*inputs, tokens], [*history, 2**30], [*leaf, 2]
    n, counted = len(inputs), Counted(history)
    parent, older_end, jump, height = ([-1] * n for _ in range(4))
    python = parents_kernel.py_func  # type: ignore[attr-defined]
    python([0, 0, 1], leaf, inputs, counted, [-1] * 3, older_end, jump, height, [2**62] * 3, parent)
    for at in range(0, n, max(n // 50, 1)):
        shorter = [each for each in range(at) if leaf[each] == 1 and history[each] <= inputs[at]]
        expected = shorter[-1] if leaf[at] == 2 and shorter else -1
        assert parent[at] == expected
    return counted.reads


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: [40, *[10**6] * n],  # as long as the one before: 67 s for 40,000 of them, once
        lambda n: [40, *range(10**6, 10**6 + n)],
        lambda n: [40, *range(10**6 + n, 10**6, -1)],
        lambda n: [40, *random.Random(1).sample(range(10**6, 2 * 10**6), n)],
    ],
)
def test_the_work_grows_with_the_requests_whatever_their_shape(
    shape: Callable[[int], list[int]],
) -> None:
    """Requests with one path: eight times as many take a little more than eight times the reads."""
    few, many = (reads_of_histories(shape(n), [40]) for n in (250, 2_000))
    assert many < 8 * few * 1.6  # the logarithm
    assert many < 2 * 2_000 * 2.5 * np.log2(2_000)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(0, 60)),
        min_size=5,
        max_size=60,
    )
)
def test_many_requests_of_few_paths_equal_the_oracle(
    drawn: list[tuple[int, int, int]],
) -> None:
    """Prefixes of one path, of all lengths of history: the most recent that fits is the parent."""
    trace = [
        Request(input_tokens=16 * n + more, output_tokens=out, hash_ids=list(range(n)))
        for n, more, out in drawn
    ]
    made = small_traces.built(trace, 16)
    assert small_traces.parents(made) == lineage.inferred(trace, 16)


def test_a_log_with_the_newest_first_is_put_in_order() -> None:
    """Turns of a session follow each other by time, whatever their order in the file."""
    turns = [
        Request(input_tokens=n, output_tokens=0, session_id="s", arrival_s=at_s)
        for n, at_s in ((3, 2.0), (2, 1.0), (1, 0.0))
    ]
    made = small_traces.built(turns, 1)
    assert small_traces.parents(made) == [None, 0, 1]
    assert list(made.requests["input_tokens"]) == [1, 2, 3]
    assert "newest requests come first: put in order of time" in made.notes
    rotated = [turns[1], turns[0], turns[2]]
    made = small_traces.built(rotated, 1)
    assert small_traces.parents(made) == [None, 0, 1]
    assert not any("newest" in note for note in made.notes)


PATHS = st.lists(st.lists(st.integers(-2, 2) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=6))


def oracle(paths: list[list[int]]) -> tuple[dict[tuple[int, ...], int], list[int]]:
    """Blocks numbered from 1 in order of appearance by their prefix, and each path's last one."""
    numbers: dict[tuple[int, ...], int] = {}
    leaves = []
    for path in paths:
        for end in range(1, len(path) + 1):
            numbers.setdefault(tuple(path[:end]), len(numbers) + 1)
        leaves.append(numbers[tuple(path)] if path else 0)
    return numbers, leaves


def intern(trie: Trie, paths: list[list[int]]) -> list[int]:
    """Return the last block of each path, interned in one batch."""
    starts = np.cumsum([0, *map(len, paths)], dtype=np.int64)
    ids = np.array([one for path in paths for one in path], dtype=np.int64)
    return [int(leaf) for leaf in trie.intern(starts, ids)]


@settings(deadline=None, max_examples=200)
@given(st.lists(PATHS, max_size=4))
def test_equals_a_dict_of_prefixes(batches: list[list[list[int]]]) -> None:
    """However the paths are batched, numbers, parents, depths and hash ids are a dict's."""
    trie = Trie()
    leaves = [leaf for batch in batches for leaf in intern(trie, batch)]
    numbers, expected = oracle([path for batch in batches for path in batch])
    assert leaves == expected
    assert trie.count == len(numbers) + 1
    for prefix, block in numbers.items():
        assert trie.parent[block] == numbers.get(prefix[:-1], 0)
        assert trie.depth[block] == len(prefix) - 1
        assert trie.hash_id[block] == prefix[-1]


def test_grows_beyond_its_first_capacity() -> None:
    """A wide and a deep trie of 300,000 blocks survive several rehashes and reallocations."""
    rng = np.random.default_rng(7)
    paths = [[int(one) for one in rng.integers(0, 1000, 3)] for _ in range(60_000)]
    paths += [list(range(start, start + 3000)) for start in range(0, 120_000, 3000)]
    trie = Trie()
    leaves = [
        leaf for at in range(0, len(paths), 9000) for leaf in intern(trie, paths[at : at + 9000])
    ]
    _, expected = oracle(paths[:60_000])
    assert leaves[:60_000] == expected
    deep = trie.count
    assert deep > 2 * (1 << 16)
    assert intern(trie, paths) == leaves
    assert trie.count == deep


@settings(deadline=None, max_examples=200)
@given(st.data(), small_traces.SIZES, st.booleans())
def test_equals_the_oracle_block_by_block(data: st.DataObject, size: int, chats: bool) -> None:
    """Runs, expanded, are each block's previous toucher; first, last, reuses and ideal agree."""
    trace = data.draw(small_traces.requests(size, most=20, chats=chats))
    made = small_traces.built(trace, size)
    expected = lineage.Reuse(trace, small_traces.parents(made), size)
    found = made.reuse
    runs = zip(*astuple(found.runs), strict=True)
    expanded = [
        ((int(request), int(depth) + step), int(prev))
        for request, prev, depth, blocks in runs
        for step in range(blocks)
    ]
    assert dict(expanded) == expected.previous
    assert len(expanded) == len(expected.previous)
    assert list(found.ideal_blocks) == expected.ideal
    for block in range(1, made.trie.count):
        path = tuple(small_traces.path(made, block))
        assert found.first[block] == expected.first.get(path, -1)
        assert found.last[block] == expected.last.get(path, -1)
        assert found.reuses[block] == expected.reuses[path]


@settings(deadline=None, max_examples=100)
@given(st.data(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(data: st.DataObject, chats: bool, rng: Any) -> None:
    """Shuffled lines with distinct times give the same trace, but for the blocks' numbers."""
    trace = data.draw(small_traces.requests(2, chats=chats))
    for at, request in enumerate(trace):
        request.arrival_s = at / 7
        request.type = data.draw(st.sampled_from(["text", "image"]))
    shuffled = trace.copy()
    rng.shuffle(shuffled)
    assert _analyzed(small_traces.built(shuffled, 2)) == _analyzed(small_traces.built(trace, 2))


def test_ties_keep_the_order_of_lines() -> None:
    """The sort is stable: requests of the same millisecond stay as they were written."""
    times = [2.0, 1.0, 2.0, 1.0, 1.0]
    trace = [
        Request(input_tokens=1, output_tokens=0, chat_id=at, arrival_s=time)
        for at, time in enumerate(times)
    ]
    made = small_traces.built(trace, 16)
    assert list(made.requests["chat_id"]) == [1, 3, 4, 0, 2]
    assert list(made.requests["arrival_s"]) == [0, 0, 0, 1, 1]
    assert made.out_of_order == 2


def _analyzed(made: Built) -> dict[str, Any]:
    """Everything that later rooms read, free of the blocks' numbers and of the types' codes."""
    requests = {name: list(values) for name, values in made.requests.items()}
    curve = lru_curve(small_traces.prompts(made), HitDefinition("default"))
    paths = [tuple(small_traces.path(made, block)) for block in range(1, made.trie.count)]
    blocks = zip(
        paths, made.reuse.first[1:], made.reuse.last[1:], made.reuse.reuses[1:], strict=True
    )
    return requests | {
        "leaf": [small_traces.path(made, leaf) for leaf in requests["leaf"]],
        "carried_leaf": [small_traces.path(made, leaf) for leaf in requests["carried_leaf"]],
        "type": [made.names["type"][code] for code in requests["type"]],
        "lineage": made.lineage,
        "runs": np.stack(astuple(made.reuse.runs)).tolist(),
        "blocks": sorted(blocks),
        "curve": (curve.knots.tolist(), curve.hits.tolist(), curve.total),
    }
