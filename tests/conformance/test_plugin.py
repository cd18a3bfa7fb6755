"""kvscope's plugin in vLLM's own scheduler evicts the blocks that the simulator's model evicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.arrays import Float64s
from kvscope.core.hits import standard
from kvscope.learning.learners import FittedTable
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.returns.file import FittedReturns
from kvscope.learning.returns.formulas import LRU, OWN, ROWS
from kvscope.learning.returns.online import ReturnsLearner
from kvscope.policies.base import LanePolicy, Leaves
from kvscope.policies.gittins import AGES, Gittins
from kvscope.policies.lru import Lru, ThresholdLru, Ttl
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa, reuse_rows
from kvscope.replay.replay import Tables
from kvscope.replay.traffic import traffic
from tests.conformance.conversations import prompts_of
from tests.conformance.kvscope_side import Model
from tests.conformance.stepping import MIXES, SLOTS, both, fitting, stepped
from tests.long import long

pytestmark = pytest.mark.engine

POLICIES: dict[str, LanePolicy] = {
    "tlru": TLru({"xi_tokens": 200, "next_prompt_tokens": 60}),
    "tlru any": TLru({"xi_tokens": 200, "next_prompt_tokens": 60}, leaves="any"),
    "tlru adaptive": TLru({"xi_percentile": 0.8, "next_prompt_tokens": 60}),
    "tlru ttl": TLru({"xi_tokens": 200, "next_prompt_tokens": 60, "ttl_s": 90}),
    "threshold-lru": ThresholdLru({"threshold_tokens": 150}),
    "ttl": Ttl({"ttl_s": 6}),
    "wa": Wa(),
    "gittins": Gittins({"xi_tokens": 200, "next_prompt_tokens": 60}),
    "gittins hits": Gittins({"xi_tokens": 0, "refit_requests": 16}),
    "gittins with ttl": Gittins({"xi_tokens": 200, "ttl_s": 400}),
}
KINDS = 5
TABLE = Tables.of(
    np.zeros(1, dtype=np.int64),
    reuse_rows(
        np.array([[0.9, 0.2, 0.6, 0.6, 0.0]]),
        np.array([[0.02, 0.5, 0.001, 0.02, 1.0]]),
        np.array([[40.0, 5.0, 900.0, 9.0, 1.0]]),
    ),
)


def random_fit(seed: int) -> FittedReturns:
    """Return random indices that rise and fall with age."""
    return FittedReturns(np.random.default_rng(seed).lognormal(-4.0, 2.0, (ROWS, AGES)), 1)


def compared(
    folder: Path, name: str, mix: str, usable_blocks: int, *, requests: int, overlapped: bool
) -> dict[str, int]:
    """Step both sides to the end, and check that the policy makes a difference.

    `gittins` goes by its table whatever that is worth: without its guard.
    """
    trace = fitting(requests, usable_blocks + len(name), mix, 16, usable_blocks)
    policy, more = POLICIES[name], {}
    if name == "wa":
        rng = np.random.default_rng(len(trace))
        more = {"kinds": [f"kind{k}" for k in rng.integers(KINDS, size=len(trace))]}
        more |= {"tables": TABLE}
    if isinstance(policy, Gittins):
        fitted = random_fit(len(trace))
        known = traffic(prompts_of(trace, 16), standard())
        tables = replace(plugin_tables(known, policy, fitted), choose=None)
        more = {"fitted": fitted, "tables": tables}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReturnsLearner, "guard", lambda *_: None)
        vllm, model = both(
            folder, trace, 16, usable_blocks, overlapped=overlapped, policy=policy, **more
        )
    counts = stepped(vllm, model)
    assert not vllm.steering.broken
    assert vllm.steering.free.evictions == model.machine.state[0].evictions > 0
    lru = Model(trace, 16, Lru(), model.settings)
    lru.finish(len(trace))
    assert lru.machine.requests.hits.tolist() != model.machine.requests.hits.tolist()
    return counts


@pytest.mark.parametrize("usable_blocks", [80, long(300)])
@pytest.mark.parametrize(
    ("name", "overlapped"),
    [
        *((name, True) for name in POLICIES),
        *((name, False) if name == "gittins" else long(name, False) for name in POLICIES),
    ],
)
def test_every_step_agrees(tmp_path: Path, usable_blocks: int, name: str, overlapped: bool) -> None:
    """Chunks and preemption: the same blocks are evicted, in order.

    The scheduler that overlaps its steps is vLLM's default.
    """
    requests = 200 if usable_blocks == 80 and name != "tlru adaptive" else 400
    counts = compared(
        tmp_path, name, "chats", usable_blocks, requests=requests, overlapped=overlapped
    )
    assert counts["hits"] > 0
    if usable_blocks == 80:
        assert counts["preemptions"] > 0


@pytest.mark.parametrize("mix", [mix for mix in MIXES if mix != "chats"])
@pytest.mark.parametrize("name", ["wa", "gittins", long("tlru")])
def test_every_mix_agrees(tmp_path: Path, mix: str, name: str) -> None:
    """Bursts, long prompts, long outputs, and repeated prompts."""
    compared(tmp_path, name, mix, 200, requests=200, overlapped=False)


def switching(
    folder: Path, mix: str, policy: LanePolicy, fitted: FittedTable | None = None
) -> tuple[dict[int, int], int]:
    """Step both sides to the end; return evictions at the start of each candidate, and in all."""
    trace = fitting(600, 5, mix, 16, 200)
    known = traffic(prompts_of(trace, 16), standard())
    tables = plugin_tables(known, policy, fitted)
    vllm, model = both(folder, trace, 16, 200, policy=policy, fitted=fitted, tables=tables)
    learner, evictions = vllm.steering.learner, dict[int, int]()
    use = vllm.steering.use

    def used(table: Float64s) -> None:
        evictions.setdefault(learner.candidate, vllm.steering.free.evictions)
        use(table)

    assert learner.candidate == LRU
    vllm.steering.use = used
    stepped(vllm, model)
    assert not vllm.steering.broken
    return evictions, vllm.steering.free.evictions


@pytest.mark.parametrize(("mix", "xi"), [("chats", 0), long("chats", 200), ("long prompts", 200)])
def test_a_guard_changes_the_order_of_blocks_that_lie_there(
    tmp_path: Path, mix: str, xi: int
) -> None:
    """It begins with LRU; at each change the queues' order is another one, as in the simulator."""
    policy = Gittins({"xi_tokens": xi, "refit_requests": 16})
    alike = np.ones((ROWS, AGES))
    began, evictions = switching(tmp_path, mix, policy, FittedReturns(alike, 16, refits=True))
    assert max(began) == OWN
    assert all(before > 1000 for candidate, before in began.items() if candidate != LRU)
    assert evictions > max(began.values()) + 1000


@pytest.mark.parametrize("leaves", ["leaf", "any"])
def test_a_guarded_tlru_takes_its_order_up_where_blocks_lie(tmp_path: Path, leaves: Leaves) -> None:
    """It begins with LRU; T-LRU is in force once its shadow computes surely less."""
    values = {"xi_tokens": 200.0, "next_prompt_tokens": 60.0, "guard": 1.0}
    began, evictions = switching(tmp_path, "long prompts", TLru(values, leaves))
    assert 1000 < began[1] < evictions - 1000


@pytest.mark.parametrize("mix", MIXES)
def test_lru_in_the_queue_is_vllms_order(tmp_path: Path, mix: str) -> None:
    """With the plugin's queue for plain LRU, the order is that of vLLM's own queue."""
    trace = fitting(200, 3, mix, 16, 120)
    policy = Lru({"ttl_s": 1e9})  # finite, so that the plugin replaces the queue
    counts = stepped(*both(tmp_path, trace, 16, 120, policy=policy))
    own, _ = both(tmp_path, trace, 16, 120)
    while own.step():
        pass
    assert sum(own.hit_tokens.values()) == counts["hits"] > 0


def test_plain_lru_leaves_vllms_queue_where_it_is(tmp_path: Path) -> None:
    """LRU is vLLM's own order: nothing is replaced."""
    trace = fitting(20, 3, "chats", 16, 120)
    vllm, _ = both(tmp_path, trace, 16, 120)
    queue = type(vllm.scheduler.kv_cache_manager.block_pool.free_block_queue)
    assert queue.__module__.startswith("vllm.")
    assert SLOTS == 16
