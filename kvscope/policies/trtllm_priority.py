"""TensorRT-LLM's eviction by priority."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.core.trace import DEFAULT_PRIORITY
from kvscope.policies.base import TTL, LanePolicy, Turn

TTL_S, PRIORITY = 0, 1
"""Columns of the table, which has a row for each category: time to live (s) and priority."""
_LONGEST_S = 1e9  # that a wait in a queue counts; scores resolve 10 microseconds


class TrtllmPriority(LanePolicy):
    """Evict the longest waiting block of the lowest priority (0–100, 35 without a directive).

    Key (priority, time at which the block joined its priority's queue, r, -d): the time of its last
    touch, or when its time to live ended, with the default priority from then on. A touch begins
    the time to live anew, with the priority of the touching request. Simplified here: a priority
    below the default does not expire. A lane's score is that of its oldest block: once raised to
    the default, it would protect the lane's younger blocks, which still have the lower priority.
    Only leaves are evicted. TensorRT-LLM counts from the release of a block, not from its request.
    Source: TensorRT-LLM, cpp/tensorrt_llm/batch_manager/evictionPolicy.cpp.
    """

    name = "trtllm-priority"
    summary = "by stated priority and time to live, as in TensorRT-LLM"
    source = "TensorRT-LLM"
    leaves = "leaf"
    by_category = True
    learner = "directives"
    parameters = (TTL,)

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Float64s) -> tuple[int, int]:
        """Return (0, lane): all blocks of a prompt's part are in the lane of the turn's category.

        It is called for each part of the prompt on its own, with a `turn` whose category stands for
        the request's directives and the part. Parts end where the directives change.
        """
        return 0, turn.category

    @staticmethod
    def score(lane: int, idle_s: float, p: Float64s, table: Float64s) -> float:
        """Return the priority, minus a fraction (0 to 1) that grows with the time in its queue."""
        level, ttl_s = table[lane, PRIORITY], table[lane, TTL_S]
        waited_s = idle_s
        if level > DEFAULT_PRIORITY and idle_s > ttl_s:
            level, waited_s = DEFAULT_PRIORITY, idle_s - ttl_s
        return float(level - min(waited_s, _LONGEST_S) / _LONGEST_S)

    @classmethod
    def runs_in_plugin(cls) -> bool:
        """Return False: TensorRT-LLM itself runs it."""
        return False
