"""kvscope's router of Ray Serve LLM in lockstep with the real class of Ray's wheel.

Every decision and every size of the tree; requests finish when the script says so. What the real
router leaves open is set the same for both: the order among equals, and which pairs are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from kvscope.routers.ray_serve import RayPrefixAware
from tests.routers.scripted import CHARACTERS_PER_TOKEN, Script, decide, scripted

pytest.importorskip("ray", reason="no Ray here")

from tests.conformance.ray_side import RayRouter, ray_serve

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:::ray")]

REQUESTS = pytest.mark.parametrize("count", [600, pytest.param(5_000, marks=pytest.mark.long)])
SMALL = {"eviction_interval_s": 1, "eviction_threshold_chars": 900, "eviction_target_chars": 400}


@pytest.fixture(scope="module", autouse=True)
def _modules() -> Iterator[None]:
    with ray_serve():
        yield


def ours(**values: float) -> RayPrefixAware:
    """Return a router for the scripted texts."""
    return RayPrefixAware({"characters_per_token": CHARACTERS_PER_TOKEN} | values)


def real(router: RayPrefixAware, replicas: int) -> RayRouter:
    """Return the real router, as the flags set it."""
    return RayRouter(yaml.safe_load(" ".join(router.flags()))["request_router_config"], replicas)


def body(number: int, text: str) -> SimpleNamespace:
    """Return a request with this text: as a prompt, as messages, or in parts of messages."""
    halves = text[: len(text) // 2], text[len(text) // 2 :]
    parts = [{"type": "text", "text": half} for half in halves]
    kinds: tuple[dict[str, Any], ...] = (
        {"prompt": text},
        {"messages": [{"role": "user", "content": half} for half in halves]},
        {"messages": [{"role": "user", "content": parts}]},
    )
    return SimpleNamespace(**kinds[number % 3])


def lockstep(
    router: RayPrefixAware, program: RayRouter, script: Script, memory: Any, first: int, end: int
) -> list[int]:
    """Return the choices of both for some requests, all of them the same; none is in flight yet."""
    choices: list[int] = []
    part = script._replace(requests=script.requests[first:end])
    times = [number / 20 for number in range(first, end)]
    replicas, interval_s = len(program.load), router.values["eviction_interval_s"]
    decided = decide(router, part, replicas, memory, times)
    for place, now_s in enumerate(times):
        for earlier in part.finished_before(place):
            program.finish(choices[earlier])
        if interval_s and int(now_s / interval_s) > int(program.now_s / interval_s):
            program.tree.evict()
        program.now_s = now_s
        text = script.text(first + place)
        choices.append(program.send(body(place, text), memory.dice))
        assert next(decided) == choices[-1], place
        tokens = memory.tree.replica_tokens[:replicas] * CHARACTERS_PER_TOKEN
        assert tokens.tolist() == program.characters(), place
    return choices


@REQUESTS
@pytest.mark.parametrize(
    ("replicas", "values", "wrong"),
    [
        (4, {}, [{"match_rate_threshold": 0.3}, {"imbalanced_threshold": 3}]),
        (4, {"match_rate_threshold": 0}, [{"match_rate_threshold": 0.1}]),
        (
            8,
            {"imbalanced_threshold": 6, "match_rate_threshold": 0.5},
            [{"imbalanced_threshold": 7}, {"match_rate_threshold": 0.4}],
        ),
        (2, {"imbalanced_threshold": 4}, [{"imbalanced_threshold": 3}]),
        (
            3,
            {"match_rate_threshold": 0.3, **SMALL},
            [
                {"eviction_interval_s": 2},
                {"eviction_threshold_chars": 1200},
                {"eviction_target_chars": 500},
            ],
        ),
        (1, {"imbalanced_threshold": 0}, []),
    ],
    ids=["defaults", "any match", "busy", "two", "evicting", "one"],
)
def test_every_choice_is_rays(
    count: int, replicas: int, values: dict[str, float], wrong: list[dict[str, float]]
) -> None:
    """Choices and sizes are the real ones, and wrong settings are found out."""
    script = scripted(count, 1, in_flight=40)
    router = ours(**values)
    with real(router, replicas) as program:
        memory = router.memory(script.sizes(replicas), 1)
        choices = lockstep(router, program, script, memory, 0, count)
    assert len(set(choices)) == replicas
    times = [number / 20 for number in range(count)]
    for change in wrong:
        others = decide(ours(**(values | change)), script, replicas, times=times)
        same = sum(a == b for a, b in zip(choices, others, strict=True))
        assert same < 0.99 * count, change


def test_replicas_that_come_and_go() -> None:
    """Those that leave are forgotten, and new ones begin with no text."""
    script = scripted(750, 3, in_flight=30)
    router = ours(match_rate_threshold=0.3, imbalanced_threshold=8)
    memory = router.memory(script.sizes(5), 1)
    with real(router, 5) as program:
        for place, replicas in enumerate((4, 2, 5, 1, 3)):
            program.set_replicas(replicas)
            memory = router.among(memory, replicas, 1)
            first = place * 150
            choices = lockstep(router, program, script, memory, first, first + 150)
            assert set(choices) == set(range(replicas))
