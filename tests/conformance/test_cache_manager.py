"""vLLM's own cache manager, requests one at a time: the model does the same, block for block."""

from __future__ import annotations

import pytest

from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.vllm_sim.replay import replay_engine
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance.contents import compared
from tests.conformance.conversations import Mix, as_trace, conversations
from tests.conformance.kvscope_side import ONE_EACH, Model
from tests.conformance.lanes import SafeFirst
from tests.conformance.vllm_side import Request, manager, serve_alone, vllm_request
from tests.long import long
from tests.small_traces import built, prompts

pytestmark = pytest.mark.engine

MIXES = {
    "chats": Mix(),
    "short": Mix(head=20, turn=10, output=5, new=0.6),
    "long outputs": Mix(turn=30, output=150),
    "repeats": Mix(head=200, again=0.5, edited=0.2, silent=0.2),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    ("usable_blocks", "size", "requests"),
    [
        *((24, 16, 250), (150, 32, 250), (2000, 16, 250)),
        *(long(blocks, size, 600) for blocks in (24, 60, 150, 400, 2000) for size in (16, 32)),
    ],
)
def test_hits_and_the_order_of_free_blocks_agree(
    usable_blocks: int, size: int, requests: int, mix: str
) -> None:
    """After each request: the same hits, and the same free blocks in the same order."""
    trace = conversations(requests, usable_blocks * size, MIXES[mix])
    cache = manager(usable_blocks, size)
    compared(trace, size, cache, Model(trace, size, Lru(), alone(usable_blocks)))


@pytest.mark.parametrize(("usable_blocks", "xi_tokens"), [(60, 400), (150, 150)])
def test_lanes_agree(usable_blocks: int, xi_tokens: int) -> None:
    """T-LRU in two queues: vLLM with such queues evicts the same blocks, in order."""
    trace = conversations(300, xi_tokens, MIXES["chats"])
    policy = TLru({"xi_tokens": xi_tokens, "next_prompt_tokens": 60}, leaves="any")
    cache = manager(usable_blocks, 16)
    queue = SafeFirst(cache.block_pool.free_block_queue.get_all_free_blocks())
    cache.block_pool.free_block_queue = queue
    model = Model(trace, 16, policy, alone(usable_blocks))

    def before_free(request: Request) -> None:
        safe_from = request.num_tokens + 60 - xi_tokens
        queue.safe = lambda block: block.block_hash_num_tokens - 16 >= safe_from

    compared(trace, 16, cache, model, before_free=before_free)
    lru = Model(trace, 16, Lru(), alone(usable_blocks))
    lru.finish(len(trace))
    assert lru.machine.requests.hits.tolist() != model.machine.requests.hits.tolist()


@pytest.mark.parametrize("usable_blocks", [60, 400])
def test_what_a_trace_tells_is_enough(usable_blocks: int) -> None:
    """Hashes of prompts alone, as in a trace, give the hits of vLLM, which knows all tokens.

    Conversations here continue with their whole history. Hashes cannot show that a turn continues
    with a part of an output, or that two outputs are equal without a later turn.
    """
    trace = conversations(300, 5, Mix(edited=0.0, silent=0.0, again=0.0))
    traced = prompts(built(as_trace(trace, 16), 16))
    replayed = replay_engine(traced, Lru(), alone(usable_blocks), ONE_EACH)
    cache = manager(usable_blocks, 16)
    for number, tokens in enumerate(trace):
        if not replayed.oversized[number]:
            hits = serve_alone(cache, vllm_request(number, tokens, 16), tokens)
            assert hits == replayed.hit_blocks[number] * 16, number
    assert replayed.hit_blocks.sum() > 0


def alone(usable_blocks: int) -> EngineSettings:
    """Return the settings of an engine that serves one request at a time."""
    return EngineSettings.one_at_a_time(usable_blocks)
