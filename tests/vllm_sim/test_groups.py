"""Hybrid models on the simulated engine: what windows keep, by hand and uncompiled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.ingest.formats.base import Request
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.vllm_sim.engine import engine_function
from kvscope.vllm_sim.settings import EngineSettings, OffloadSettings
from kvscope.vllm_sim.state import Machine, idle_machine
from tests.small_traces import built, prompts
from tests.vllm_sim.examples import FOREVER, SECONDS, asks, queue, told

FULL, WINDOW = KvGroup("full", 4), KvGroup("sliding", 4, 6)  # a hit needs two blocks of the window
LINEAR = KvGroup("linear", 4)
PATH = "abcdefgh"


def served(
    prompts: Prompts,
    groups: KvGroups,
    blocks: int = 100,
    policy: LanePolicy | None = None,
) -> Machine:
    """Return the engine after all requests, one at a time."""
    settings = EngineSettings.one_at_a_time(blocks, groups)
    machine = idle_machine(prompts, policy or Lru(), settings, SECONDS)
    engine_function(machine)(machine, FOREVER, FOREVER, math.inf)
    return machine


@pytest.mark.parametrize("sparse", [WINDOW, LINEAR])
@pytest.mark.parametrize(("retention", "hits"), [(0, 5), (None, 6), (24, 6)])
def test_an_output_is_hit_where_windows_and_states_before_its_end_are_retained(
    retention: int | None, hits: int, sparse: KvGroup
) -> None:
    """A turn after 23 tokens of prompt and 5 of output: by default it hits the prompt alone."""
    first, turn = asks(PATH[:5], 23, 5), asks(PATH, 32, 1, at=100.0)
    machine = served(told(first, turn), KvGroups((sparse, FULL), retention))
    assert machine.requests.hits.tolist() == [0, hits]


@pytest.mark.parametrize(
    ("export", "resent", "hits"),
    [(0, 23, 5), (1, 23, 5), (0, 32, 5), (1, 32, 5), (0, 20, 4)],
)
def test_a_state_at_the_end_of_a_prompt_is_hit_within_its_block(
    export: int, resent: int, hits: int
) -> None:
    """23 tokens in blocks of 16, with hashes of 4: the state after 20 tokens is kept.

    As many are hit by the same prompt again and by a longer one; at most the blocks before its last
    token by a shorter one, which needs the state after 16: the step ended there, too.
    """
    wide = KvGroup("linear", 16, export_tokens=export), KvGroup("full", 16)
    first, again = asks(PATH[:5], 23, 5), asks(PATH[: resent // 4], resent, 1, at=100.0)
    machine = served(told(first, again), KvGroups(wide, None, match_tokens=4))
    assert machine.requests.hits.tolist() == [0, hits]
    whole = served(told(first, again), KvGroups(wide, None))
    assert whole.requests.hits.tolist() == [0, 4]


def test_where_prompts_part_the_second_request_keeps_a_window_for_the_third() -> None:
    """Full attention has the shared head at once; windows only after the junction was seen."""
    requests = [
        asks("abcd" + tail, 24, at=at) for at, tail in ((0.0, "xy"), (50.0, "uv"), (99, "rs"))
    ]
    machine = served(told(*requests), KvGroups((FULL, WINDOW)))
    assert machine.requests.junction.tolist() == [0, 16, 0]
    assert machine.requests.hits.tolist() == [0, 0, 4]


@pytest.mark.parametrize("window_first", [True, False])
def test_what_was_written_counts_in_blocks_of_full_attention(window_first: bool) -> None:
    """Of 20 tokens, two of its blocks of 8, whichever group comes first."""
    groups = (WINDOW, KvGroup("full", 8)) if window_first else (KvGroup("full", 8), WINDOW)
    machine = served(told(asks(PATH[:5], 20), asks(PATH[:5], 20, at=99.0)), KvGroups(groups))
    assert machine.requests.written.tolist() == [0, 4]


def test_blocks_outside_of_the_window_are_free_while_a_request_runs() -> None:
    """40 tokens, 8 at a time, in 15 blocks: of 10 blocks the window needs at most 4."""
    groups = KvGroups((FULL, WINDOW))
    settings = EngineSettings(15, 1, 8, groups=groups)
    machine = idle_machine(told(asks("abcdefghij", 40)), Lru(), settings, SECONDS)
    engine_function(machine)(machine, 6, FOREVER, math.inf)
    assert machine.requests.finished_s.tolist() == [5.0]
    assert machine.state[0].free == 15


def test_steps_of_a_prompt_end_where_a_state_is_kept() -> None:
    """Of 23 tokens, ten a step: after 8, 16 and, the last block's end before the prompt's, 20."""
    settings = EngineSettings(30, 1, 10, groups=KvGroups((LINEAR, FULL)))
    machine = idle_machine(told(asks(PATH[:5], 23)), Lru(), settings, SECONDS)
    computed = []
    while engine_function(machine)(machine, 1, FOREVER, math.inf):
        computed.append(int(machine.requests.computed[0]))
    assert computed == [8, 16, 20, 23]


@pytest.mark.parametrize(("rehashes", "admitted_s"), [(False, 1.0), (True, 2.0)])
def test_a_state_is_hit_in_the_step_after_its_own(rehashes: bool, admitted_s: float) -> None:
    """The same prompt twice at once: the second one waits for the first one's state."""
    groups = KvGroups((LINEAR, FULL))
    settings = EngineSettings(60, 2, 64, groups=groups, rehashes_states=rehashes)
    machine = idle_machine(told(*[asks(PATH[:5], 23)] * 2), Lru(), settings, SECONDS)
    engine_function(machine)(machine, FOREVER, FOREVER, math.inf)
    assert machine.requests.hits.tolist() == [0, 5]
    assert machine.requests.admitted_s.tolist() == [0.0, admitted_s]


def test_only_lru_orders_blocks_of_several_kinds() -> None:
    """The error says so, and what would do."""
    with pytest.raises(UsageError, match="tlru has no order for blocks of several kinds"):
        served(told(asks(PATH, 32)), KvGroups((FULL, WINDOW)), policy=TLru({"xi_tokens": 10}))


@pytest.mark.parametrize(("blocks", "numbers"), [(8, 101), (60, 122)])
def test_blocks_have_numbers_of_32_bits(
    blocks: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pool of 100 each has one, of a trace one a group; with one too many none is replayed."""
    wanted = told(asks("".join(map(chr, range(blocks))), 4 * blocks)), KvGroups((FULL, WINDOW))
    monkeypatch.setattr("kvscope.vllm_sim.state.NO_LIMIT", numbers + 1)
    served(*wanted)
    monkeypatch.setattr("kvscope.vllm_sim.state.NO_LIMIT", numbers)
    with pytest.raises(UsageError, match=f"{numbers} blocks of a trace or a pool"):
        served(*wanted)


def test_a_trace_whose_blocks_do_not_divide_the_models_is_refused() -> None:
    """Four tokens a block in the trace, groups of 6 and 12."""
    groups = KvGroups((KvGroup("full", 12), KvGroup("sliding", 6, 6)))
    with pytest.raises(UsageError, match=r"blocks of 4 tokens do not divide .* 6, 12") as refused:
        served(told(asks(PATH, 32)), groups)
    assert "in blocks of 6 tokens" in str(refused.value)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=6), st.integers(0, 3)), min_size=1, max_size=8
    ),
    st.integers(30, 60),
    st.sampled_from([0, 8, None]),
)
def test_windows_in_smaller_blocks_than_the_trace(
    asked: list[tuple[str, int]], blocks: int, retention: int | None
) -> None:
    """The trace in blocks of four tokens and the same in blocks of two: the same is hit and left.

    Each block of four is two of two.
    """
    sizes = KvGroup("full", 8), KvGroup("sliding", 2, 3), KvGroup("sliding", 4, 5)
    groups = KvGroups(sizes, retention)
    paths, tokens = [path for path, _ in asked], [4 * len(path) + more for path, more in asked]
    halves = ["".join(each + each.upper() for each in path) for path in paths]
    whole, half = (
        served(
            prompts(built([asks(p, n, 3) for p, n in zip(each, tokens, strict=True)], size)),
            groups,
            blocks,
        )
        for each, size in ((paths, 4), (halves, 2))
    )
    assert (whole.requests.hits * 4).tolist() == (half.requests.hits * 2).tolist()
    assert whole.requests.junction.tolist() == half.requests.junction.tolist()
    assert whole.state.evictions.tolist() == half.state.evictions.tolist()
    assert queue(whole, 0) == queue(half, 0)
    assert queue(whole, 1) == queue(half, 1)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(0, 15)),
        min_size=1,
        max_size=6,
    )
)
def test_all_groups_in_smaller_blocks_than_the_trace(asked: list[tuple[str, int]]) -> None:
    """Blocks of 16 tokens, of 8 and less in the engine: a hit is as long as whole blocks show."""
    sizes = KvGroup("full", 8), KvGroup("sliding", 2, 3), KvGroup("sliding", 4, 5)
    groups = KvGroups(sizes, None)
    tokens = [16 * len(path) + more for path, more in asked]
    paths = [list(path) for path, _ in asked]
    parts = [[f"{each}{at}" for each in path for at in range(8)] for path in paths]
    whole, part = (
        served(
            prompts(built([asks_for(p, n) for p, n in zip(each, tokens, strict=True)], size)),
            groups,
            5000,
        )
        for each, size in ((paths, 16), (parts, 2))
    )
    assert whole.requests.hits.tolist() == (part.requests.hits * 2 // 16).tolist()


def asks_for(path: list[str], tokens: int) -> Request:
    """Return a request with such blocks."""
    return Request(input_tokens=tokens, output_tokens=3, arrival_s=0.0, hash_ids=path)


def test_a_tier_below_windows_in_smaller_blocks_is_refused() -> None:
    """No connector was compared there."""
    groups = KvGroups((KvGroup("full", 8), KvGroup("sliding", 2, 5)))
    offload = OffloadSettings(1000, blocks_per_chunk=1)
    asked = EngineSettings.one_at_a_time(100, groups)
    with pytest.raises(UsageError, match="a CPU tier beside windows in blocks of 2 tokens"):
        idle_machine(told(asks(PATH, 32)), Lru(), replace(asked, offload=offload), SECONDS)


@pytest.mark.parametrize("interval", [-16, 8, 10])
def test_a_retention_that_vllm_refuses_is_refused(interval: int) -> None:
    """The interval is a multiple of all groups' blocks."""
    with pytest.raises(UsageError, match="not a multiple of 16"):
        KvGroups((KvGroup("full", 16), WINDOW), interval)
    with pytest.raises(UsageError, match="no effect without sliding"):
        KvGroups((KvGroup("full", 16),), 16)
