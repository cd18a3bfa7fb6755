"""The production stack's prefixaware router against sets of chunks of text."""

from __future__ import annotations

import pytest

from kvscope.routers import prefixaware
from kvscope.routers.prefixaware import Prefixaware
from tests.routers.scripted import decide, scripted
from tests.routers.views import BLOCK_TOKENS, load, path, prompt_of, sizes, view

CHUNK = 128


@pytest.mark.parametrize("characters", [16, 24, 40, 128])
def test_choices_are_of_those_that_had_the_longest_prefix(
    characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a half, three quarters, more than one and four chunks."""
    script, replicas = scripted(500, 3), 4
    draws = prefixaware.draw
    candidates: list[int] = []

    def noted(dice: object, below: int) -> int:
        """Draw, and note from how many."""
        candidates.append(below)
        return draws(dice, below)  # type: ignore[arg-type]

    monkeypatch.setattr(prefixaware, "draw", noted)
    had: dict[str, set[int]] = {}
    router = Prefixaware({"characters_per_token": characters})
    matched = 0
    for number, choice in enumerate(decide(router, script, replicas)):
        text = script.text(number, characters)
        assert len(text) == script.requests[number].input_tokens * characters
        ends = [*range(CHUNK, len(text) + 1, CHUNK), *([len(text)] if len(text) % CHUNK else [])]
        matching = set(range(replicas))
        for end in ends:
            if not had.get(text[:end]):
                break
            matching = had[text[:end]]
            matched += 1
        assert choice in matching
        assert candidates[-1] == len(matching)
        for end in ends:
            had.setdefault(text[:end], set()).add(choice)
    assert len(candidates) == 500
    assert 0 < candidates.count(1) < 500
    assert matched > 500


def test_a_shared_beginning_draws_all_requests_to_one_replica() -> None:
    """So it is with any system prompt of 128 characters."""
    router = Prefixaware()
    memory = router.memory(sizes(4), seed=1)
    chosen = set()
    for request in range(20):
        blocks = path(1, 2, 3 + request)
        chosen.add(
            router.choose(prompt_of(blocks, request), blocks, view(4), memory, router.settings())
        )
    assert len(chosen) == 1


def test_below_the_least_match_the_fewest_recent_requests_decide() -> None:
    router = Prefixaware({"prefix_min_match_length": 4 * BLOCK_TOKENS * 3})
    memory = router.memory(sizes(3), seed=1)

    def choice(request: int, now_s: float, sent: list[int], *blocks: int) -> int:
        """Return the choice for a request, of which replicas got so many before."""
        return router.choose(
            prompt_of(path(*blocks), request, now_s),
            path(*blocks),
            view(3, own=load(3, processed=sent)),
            memory,
            router.settings(),
        )

    assert choice(0, 0.0, [0, 0, 0], 1, 2, 3, 4) == 0
    assert choice(1, 1.0, [1, 0, 0], 1, 2, 5) == 1  # matches two blocks only
    assert choice(2, 2.0, [1, 1, 0], 1, 2, 3, 4) == 0  # matches all
    assert choice(3, 3.0, [2, 1, 0], 9) == 2  # never had any
    assert choice(4, 4.0, [2, 1, 1], 10) == 1  # one request as replica 2: the first of equals
    assert choice(5, 61.5, [2, 2, 1], 11) == 0  # of the last minute each has one
