"""vLLM's data-parallel balancer, by hand from its score."""

from __future__ import annotations

from kvscope.routers.base import View
from kvscope.routers.vllm_dp import VllmDp
from tests.routers.views import load, path, prompt_of, view


def chosen(seen: View, request: int = 0) -> int:
    """Return the choice for a request."""
    return VllmDp.choose(
        prompt_of(path(1), request), path(1), seen, VllmDp().memory, VllmDp().settings()
    )


def test_equal_engines_take_turns() -> None:
    assert [chosen(view(3), request) for request in range(5)] == [0, 1, 2, 0, 1]


def test_the_greater_of_own_count_and_snapshot_counts() -> None:
    """Scores: max(4, 1 + 1) = 4, max(1, 2 + 3) = 5, max(3, 0) = 3."""
    scraped = load(3, waiting=[1, 2, 0], running=[1, 3, 0])
    seen = view(3, own=load(3, in_flight=[4, 1, 3]), scraped=scraped)
    assert chosen(seen) == 2
    seen = view(3, own=load(3, in_flight=[4, 1, 6]), scraped=scraped)
    assert chosen(seen) == 0


def test_requests_sent_since_the_snapshot_wait() -> None:
    """Replica 0 ran 2 then and got 2 since, none of them in flight any more; replica 1 ran 3."""
    own = load(2, processed=[9, 5])
    seen = view(2, own=own, scraped=load(2, running=[2, 3], processed=[7, 5]))
    assert chosen(seen) == 1
    seen = view(2, own=own, scraped=load(2, running=[2, 3], processed=[9, 5]))
    assert chosen(seen) == 0


def test_a_queue_counts_up_to_four_times_as_memory_fills() -> None:
    """2 waiting at 90 % usage: 2 + 6 * 2 * 0.4 = 6.8, between 6 and 7 running; at 50 %: 2."""

    def full(used_blocks: int, running: int) -> int:
        scraped = load(2, waiting=[2, 0], running=[0, running], used_blocks=[used_blocks, 0])
        return chosen(view(2, scraped=scraped))

    assert [full(90, 6), full(90, 7)] == [1, 0]
    assert [full(50, 1), full(50, 3)] == [1, 0]
    assert [full(500, 7), full(500, 9)] == [1, 0]  # at most 100 %: 2 + 6 = 8
