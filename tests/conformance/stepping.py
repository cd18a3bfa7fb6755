"""Step vLLM's scheduler and kvscope's model of it together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvscope.deployment.kv_groups import KvGroups
from kvscope.learning.learners import FittedTable
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.vllm_plugin.guarded_queue import GuardedQueue
from kvscope.vllm_sim.settings import EngineSettings
from tests.conformance.conversations import Mix, TokenRequest, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.vllm_side import COUNTS_LOOKUPS, REHASHES_STATES, VllmScheduler

SLOTS = 16
MIXES = {
    "chats": Mix(gap=2.0),
    "rush": Mix(gap=0.3),
    "long prompts": Mix(head=300, turn=200, output=20, gap=1.5),
    "long outputs": Mix(turn=30, output=150, gap=6.0),
    "repeats": Mix(head=200, again=0.5, edited=0.2, silent=0.2, gap=2.0),
}


def both(
    folder: Path,
    trace: list[TokenRequest],
    size: int,
    usable_blocks: int,
    *,
    overlapped: bool = False,
    tokens: int = 256,
    reserve: bool = True,
    policy: LanePolicy | None = None,
    kinds: Sequence[str] | None = None,
    tables: Tables = NO_TABLES,
    fitted: FittedTable | None = None,
    groups: KvGroups | None = None,
) -> tuple[VllmScheduler, Model]:
    """Return both sides with equal settings; with a `policy` kvscope's plugin is in vLLM's.

    `kinds` are the requests' types, as many as `tables` has categories. `fitted` is the table
    of the plugin's file; the model then gets the requests' classes from the plugin (`classed`), as
    it does with a policy that is guarded.
    """
    vllm = VllmScheduler(
        folder,
        trace,
        size,
        usable_blocks,
        overlapped,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=tokens,
        scheduler_reserve_full_isl=reserve,
        policy=policy,
        kinds=kinds,
        fitted=fitted,
        groups=groups,
    )
    shared = fitted is not None or (policy is not None and policy.guarded)
    if not shared and tables is not NO_TABLES:
        vllm.steering.use(tables.at(0))
        vllm.steering.learner._estimator._refit_s = 1e9
    settings = EngineSettings(
        usable_blocks,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=tokens,
        async_scheduling=overlapped,
        reserve_full_prompt=reserve,
        groups=groups,
        rehashes_states=REHASHES_STATES,
    )
    model = Model(trace, size, policy or Lru(), settings, kinds, tables)
    if shared:
        classed(vllm, model)
    return vllm, model


def classed(vllm: VllmScheduler, model: Model) -> None:
    """Give the model each request's class, cuts and the table as the plugin has them at the time.

    The simulator knows output lengths in advance and sees a request in flight as if it had ended
    on arrival; an engine does not, so its guard may choose later than the simulator's.
    """
    learner, category = vllm.steering.learner, vllm.steering.learner.category

    def shared_category(request: Any, of: Any) -> int:
        number: int = category(request, of)
        row = int(request.request_id)
        model.machine.requests.category[row] = number
        model.machine.cuts[row] = learner.cuts(of)
        return number

    learner.category = shared_category
    use = vllm.steering.use
    model.machine.tables.since[1:] = sys.maxsize

    def used(table: Any) -> None:
        model.machine.tables.in_force[:] = table
        use(table)

    vllm.steering.use = used
    used(learner.table)


def free_blocks(vllm: VllmScheduler) -> list[tuple[int, bool]]:
    """Return (number from 0, has a hash) of vLLM's free blocks, the next to be taken first."""
    queue = vllm.scheduler.kv_cache_manager.block_pool.free_block_queue
    free = queue.get_all_free_blocks()
    if isinstance(queue, GuardedQueue):
        free = free[: len(free) - len(list(vllm.steering.free.set_aside))]
    return [(block.block_id - 1, block.block_hash is not None) for block in free]


def stepped(vllm: VllmScheduler, model: Model) -> dict[str, int]:
    """Step both sides to the end, comparing them; return hit tokens and preemptions."""
    step, more = 0, True
    while more:
        more = vllm.step()
        assert model.step() == more, step
        assert [int(request.request_id) for request in vllm.scheduler.running] == model.running(), (
            step
        )
        if step % 5 == 0 or not more:
            mine = [(block, content > 0) for block, content in model.free_blocks()]
            assert free_blocks(vllm) == mine, step
        step += 1
    requests, numbers = model.machine.requests, range(len(vllm.trace))
    hits = requests.hits * model.machine.state[0].block_size
    preempted = [request.num_preemptions for request in vllm.requests]
    assert hits.tolist() == [vllm.hit_tokens[number] for number in numbers]
    if not COUNTS_LOOKUPS:
        assert int(hits.sum()) == vllm.counted_hits
    assert requests.preemptions.tolist() == preempted
    assert requests.first_token_s.tolist() == [vllm.first_token_s[number] for number in numbers]
    return {"hits": int(hits.sum()), "preemptions": sum(preempted)}


def fitting(
    requests: int, seed: int, mix: str, size: int, usable_blocks: int
) -> list[TokenRequest]:
    """Generate traffic without requests that exceed so many blocks."""
    if mix == "long outputs":  # takes many steps a request
        requests //= 2
    trace = conversations(requests, seed, MIXES[mix])
    return [replace(x, parent=-1) for x in trace if x.blocks(size) < usable_blocks]
