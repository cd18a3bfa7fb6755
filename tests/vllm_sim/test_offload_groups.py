"""A CPU tier below a hybrid model's pool, on traffic small enough to follow by hand.

`tests/conformance/test_offloading_groups.py` compares it with vLLM's own code.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvscope.core.errors import UsageError
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.ingest.formats.base import Request
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.engine import engine_function
from kvscope.vllm_sim.replay import replay_engine, replayed
from kvscope.vllm_sim.settings import EngineSettings, OffloadSettings, StorageSettings, Transfers
from kvscope.vllm_sim.state import Machine, idle_machine
from tests.vllm_sim.examples import FOREVER, SECONDS, SIZE, asks, told

WINDOW = KvGroups((KvGroup("full", SIZE), KvGroup("sliding", SIZE, 2 * SIZE)))
STATES = KvGroups((KvGroup("linear", SIZE), KvGroup("full", SIZE)))
BEFORE, BETWEEN, AFTER = (
    asks("abcdefgh", 32),
    asks("ijklmnop", 32, at=100.0),
    asks("abcdefghx", 36, at=200.0),
)


def offloaded(*requests: Request, groups: KvGroups = WINDOW, **options: Any) -> Machine:
    """Return a hybrid engine of 19 blocks after all requests, above a tier of 100 chunks."""
    tier = OffloadSettings(**{"capacity_chunks": 100, **options})
    settings = EngineSettings(19, groups=groups, offload=tier)
    machine = idle_machine(told(*requests), Lru(), settings, SECONDS)
    engine_function(machine)(machine, FOREVER, FOREVER, math.inf)
    assert machine.state[0].finished == len(requests)
    return machine


def test_loads_a_window_and_all_of_full_attention() -> None:
    """A hit ends before the last block of a prompt: seven blocks of one group, two of the other."""
    done = replayed(offloaded(BEFORE, BETWEEN, AFTER))
    assert (done.hit_blocks + done.loaded_blocks).tolist() == [0, 0, 7]
    assert done.copied_blocks is not None
    assert done.copied_blocks[2] == done.loaded_blocks[2] + 2


def test_a_window_is_stored_where_prompts_can_be_continued() -> None:
    """Eight chunks of full attention and the last two before the prompt's end; all without."""
    assert offloaded(BEFORE).offload.state[0].stored == 8 + 2
    kept = KvGroups(WINDOW.groups, retention_tokens=None)
    assert offloaded(BEFORE, groups=kept).offload.state[0].stored == 8 + 8


def test_loads_the_state_at_the_end_of_a_hit() -> None:
    """Kept are the states before a prompt's end, and where all are kept those of every step."""
    between = asks("ijklmnopqrstuv", 56, at=100.0)
    machine = offloaded(BEFORE, between, AFTER, groups=STATES)
    done = replayed(machine)
    assert machine.offload.state[0].stored == (8 + 1) + (14 + 1) + (1 + 1)
    assert done.hit_blocks[2] == 0
    assert (done.hit_blocks + done.loaded_blocks).tolist() == [0, 0, 7]
    assert done.copied_blocks is not None
    assert done.copied_blocks[2] == done.loaded_blocks[2] + 1
    kept = KvGroups(STATES.groups, retention_tokens=None)
    assert offloaded(BEFORE, groups=kept).offload.state[0].stored == 8 + 2
    done = replayed(offloaded(BEFORE, between, AFTER, groups=kept))
    assert (done.hit_blocks + done.loaded_blocks).tolist() == [0, 0, 8]


def test_a_chunk_of_states_is_the_one_at_its_end() -> None:
    """Of the states after 12 and 16 of 17 tokens, the latter ends a chunk of 8 tokens."""
    kept = KvGroups(STATES.groups, retention_tokens=None)
    prompt = asks("abcde", 17)
    assert offloaded(prompt, groups=kept, blocks_per_chunk=2).offload.state[0].stored == 2 + 1


def test_a_load_takes_the_time_of_its_chunks() -> None:
    """A quarter of a second for each chunk of both groups, before the step for the rest."""
    machine = offloaded(BEFORE, BETWEEN, AFTER, load=Transfers(2.0, 0.25))
    copied = int(machine.offload.members.chunks[2])
    assert machine.requests.first_token_s[2] == 201 + 2 + copied / 4


@pytest.mark.parametrize("groups", [WINDOW, STATES])
def test_machine_code_agrees(groups: KvGroups) -> None:
    """With the plain functions."""
    requests = [asks(path, 24, 5, at) for at, path in enumerate(("abcdef", "abcxyz", "uvwxyz") * 9)]
    machine = offloaded(*requests, groups=groups, eviction_policy="arc", capacity_chunks=20)
    tier = OffloadSettings(20, eviction_policy="arc")
    settings = EngineSettings(19, groups=groups, offload=tier)
    done = replay_engine(told(*requests), Lru(), settings, SECONDS)
    assert done.hit_blocks.tolist() == machine.requests.hits.tolist()
    assert done.loaded_blocks.tolist() == (machine.offload.members.external // SIZE).tolist()
    assert done.chunk_evictions == machine.offload.state[0].evictions > 0
    assert done.loaded_blocks.sum() > 0


FINE = KvGroups((KvGroup("linear", 2 * SIZE), KvGroup("full", 2 * SIZE)), match_tokens=SIZE)
KEPT = KvGroups(WINDOW.groups, retention_tokens=3 * SIZE)
KEPT_STATES = KvGroups(STATES.groups, retention_tokens=3 * SIZE)


@pytest.mark.parametrize(
    ("groups", "options", "what"),
    [
        (FINE, {}, "hits within blocks"),
        (WINDOW, {"storage": StorageSettings()}, "files below it"),
        (KEPT, {"blocks_per_chunk": 2}, "vLLM refuses 12"),
        (KEPT_STATES, {"blocks_per_chunk": 2}, "vLLM refuses 12"),
    ],
)
def test_refuses_what_is_not_simulated(
    groups: KvGroups, options: dict[str, Any], what: str
) -> None:
    """By its name; and a retention interval that no chunk ends at, as vLLM does."""
    with pytest.raises(UsageError, match=what):
        EngineSettings(14, groups=groups, offload=OffloadSettings(8, **options))
