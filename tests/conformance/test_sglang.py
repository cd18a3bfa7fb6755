"""SGLang's own prefix cache against the simulated one: every request hits the same.

Run by `make test-sglang`, with SGLang's Python code on the path of an environment with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pytest

from kvscope.core.arrays import Int64s
from kvscope.sglang_sim.replay import replay_tree
from kvscope.sglang_sim.requests import FINISH, START
from tests.long import long
from tests.sglang_sim.chats import Chat, chats, in_flight, policy_of, traffic_of

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang's code is not on the path"),
    pytest.mark.filterwarnings("ignore"),  # of what SGLang imports
]


class Case(NamedTuple):
    """A policy of kvscope with its values, and SGLang's configuration of it."""

    policy: str
    values: dict[str, float]
    config: dict[str, int]


CASES = (
    Case("lru", {}, {}),
    Case("fifo", {}, {}),
    Case("lfu", {}, {}),
    Case("priority", {}, {}),
    Case("slru", {"protected_uses": 2}, {}),
    Case("slru", {"protected_uses": 3}, {"protected_threshold": 3}),
    Case(
        "tlru",
        {"xi_tokens": 40, "next_prompt_tokens": 8},
        {"threshold": 40, "next_prompt_estimate": 8},
    ),
)


def served(
    requests: Sequence[Chat],
    order: Int64s,
    case: Case,
    pages: int,
    page: int,
    chunk: int,
    core: str,
) -> list[int]:
    """Return the tokens that each request hits in SGLang."""
    from tests.conformance.sglang_side import Server

    most = max(len(each.prompt) + len(each.outputs) for each in requests) + page
    server = Server(
        pages, page, case.policy, case.config, chunk_tokens=chunk, core=core, most_tokens=most
    )
    hits, running = [0] * len(requests), {}
    for event in order.tolist():
        number, each = event >> 1, requests[event >> 1]
        if event & 1 == START:
            running[number] = server.start(each.prompt, each.outputs)
            hits[number] = running[number].hit
        else:
            server.finish(running.pop(number))
    assert FINISH == 1
    return hits


@pytest.mark.parametrize(
    ("core", "requests"), [("rust", 1_000), long("rust", 10_000), long("python", 10_000)]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.policy}-{len(case.config)}")
@pytest.mark.parametrize(("page", "at_once"), [(1, 1), (4, 1), (16, 1), (1, 5), (4, 5)])
def test_hits_are_sglangs(case: Case, page: int, at_once: int, core: str, requests: int) -> None:
    """One after the other and several at once, with pages of several sizes."""
    sent = chats(requests, seed=page + at_once)
    order = in_flight(len(sent), at_once)
    longest = max(len(each.prompt) + len(each.outputs) for each in sent)
    pages = (longest + 200 * at_once) // page + 2 * at_once
    chunk = 48
    theirs = np.array(served(sent, order, case, pages, page, chunk, core))
    policy, traffic = policy_of(case.policy, case.values), traffic_of(sent, page)
    ours = replay_tree(traffic, policy, pages, paged=page > 1, chunk_tokens=chunk, order=order)
    assert ours.evictions > len(sent)
    assert np.flatnonzero(ours.hit_blocks * page != theirs).tolist() == []
    if at_once == 1:  # nodes of other sizes hit something else
        other = replay_tree(traffic, policy, pages, paged=page > 1, chunk_tokens=64)
        assert not np.array_equal(other.hit_blocks * page, theirs)
