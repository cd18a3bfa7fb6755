"""Ray Serve LLM's router chooses as a memory of every prefix that was sent says."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.routers.base import draw, new_dice
from kvscope.routers.ray_serve import RayPrefixAware
from tests.routers.scripted import CHARACTERS_PER_TOKEN, Script, decide, scripted
from tests.routers.views import BLOCK_TOKENS, load, path, prompt_of, sizes, view


def evicted(had: dict[str, int], threshold: float, target: float) -> dict[str, int]:
    """Return the prefixes that stay, where requests leave whole and the least recent first."""
    if len(had) > threshold:
        while len(had) > target:
            oldest = min(had.values())
            had = {prefix: sent for prefix, sent in had.items() if sent > oldest}
    return had


def expected(
    script: Script, router: RayPrefixAware, replicas: int, times: list[float]
) -> list[int]:
    """Return the choices by all prefixes that each replica got, with the request of the last."""
    imbalanced, rate, interval_s, threshold, target, _ = router.settings().tolist()
    sent: list[dict[str, int]] = [{} for _ in range(replicas)]
    busy, choices, dice = [0] * replicas, [], new_dice(1)
    for number, now_s in enumerate(times):
        for earlier in script.finished_before(number):
            busy[choices[earlier]] -= 1
        if number and interval_s and now_s // interval_s > times[number - 1] // interval_s:
            sent = [evicted(had, threshold, target) for had in sent]
        text = script.text(number)
        prefixes = [text[:end] for end in range(1, len(text) + 1)]
        matched = [prefix for prefix in prefixes if any(prefix in had for had in sent)]
        if max(busy) - min(busy) > imbalanced:
            first = draw(dice, replicas)
            second = (first + 1 + draw(dice, replicas - 1)) % replicas
            named = [first, second]
        elif len(matched) / len(text) < rate:
            fewest = min(map(len, sent))
            named = [replica for replica, had in enumerate(sent) if len(had) == fewest]
        else:
            named = [r for r, had in enumerate(sent) if not matched or matched[-1] in had]
        choices.append(min(named, key=busy.__getitem__))
        busy[choices[-1]] += 1
        sent[choices[-1]].update(dict.fromkeys(prefixes, number))
    return choices


@given(
    seed=st.integers(0, 99),
    replicas=st.integers(1, 5),
    imbalanced=st.sampled_from([0, 2, 5, inf]),
    rate=st.sampled_from([0, 0.1, 0.5, 1]),
    interval_s=st.sampled_from([0, 1, 4]),
    threshold=st.sampled_from([0, 300, 1000]),
    target=st.sampled_from([0, 250, 900]),
)
@settings(max_examples=40, deadline=None)
def test_choices_are_those_of_all_prefixes(
    seed: int,
    replicas: int,
    imbalanced: float,
    rate: float,
    interval_s: float,
    threshold: float,
    target: float,
) -> None:
    script = scripted(120, seed)
    times = [number / 20 for number in range(120)]
    router = RayPrefixAware(
        {
            "imbalanced_threshold": imbalanced,
            "match_rate_threshold": rate,
            "eviction_interval_s": interval_s,
            "eviction_threshold_chars": threshold,
            "eviction_target_chars": target,
            "characters_per_token": CHARACTERS_PER_TOKEN,
        }
    )
    choices = list(decide(router, script, replicas, times=times))
    assert choices == expected(script, router, replicas, times)


def test_a_shared_beginning_overloads_one_replica_by_default() -> None:
    """Though it has 1,000 requests in flight, until its lead is limited."""
    busy = view(2, own=load(2, in_flight=[0, 1000]))
    for limit, chosen in ((inf, 1), (1000, 1), (999, 0)):
        router = RayPrefixAware({"imbalanced_threshold": limit})
        memory, blocks = router.memory(sizes(2), seed=1), path(1, 2)
        first = view(2, own=load(2, in_flight=[1, 0]))
        assert router.choose(prompt_of(blocks), blocks, first, memory, router.settings()) == 1
        again = path(1, 3)
        assert router.choose(prompt_of(again), again, busy, memory, router.settings()) == chosen


def test_a_new_replica_gets_all_that_match_too_little() -> None:
    """However busy it is, until it has as many characters as another."""
    router = RayPrefixAware()
    memory, settings = router.memory(sizes(2), seed=1), router.settings()

    def choice(first: int, blocks: int, replicas: int, busy: int) -> int:
        """Return the choice for a prompt of new blocks while replica 1 has requests in flight."""
        new = path(*range(first, first + blocks))
        seen = view(replicas, own=load(replicas, in_flight=[0, busy][:replicas]))
        return router.choose(prompt_of(new), new, seen, memory, settings)

    assert choice(1, 10, 1, 0) == 0
    assert [choice(20, 4, 2, 5), choice(30, 6, 2, 6), choice(40, 1, 2, 7)] == [1, 1, 0]
    assert memory.tree.replica_tokens.tolist() == [11 * BLOCK_TOKENS, 10 * BLOCK_TOKENS]


def test_a_tree_as_large_as_the_threshold_stays() -> None:
    """One more character, and it is cut to the target."""
    tokens = 4 * BLOCK_TOKENS
    for threshold, kept in ((4 * tokens, tokens), (4 * tokens - 1, 0)):
        limits = {"eviction_threshold_chars": threshold, "eviction_target_chars": 0}
        router = RayPrefixAware({"eviction_interval_s": 1, **limits})
        memory, blocks = router.memory(sizes(1), seed=1), path(1, 2, 3, 4)
        for now_s, new in ((0.0, blocks), (1.0, path(5))):
            router.choose(prompt_of(new, 0, now_s), new, view(1), memory, router.settings())
        assert memory.tree.replica_tokens.tolist() == [kept + BLOCK_TOKENS]


def test_a_prompt_said_again_adds_nothing() -> None:
    """Though it ends within a block that both have."""
    router = RayPrefixAware()
    memory, blocks = router.memory(sizes(1), seed=1), path(1, 2)
    for _ in range(2):
        prompt = prompt_of(blocks)._replace(input_tokens=BLOCK_TOKENS + 3, full_blocks=1)
        router.choose(prompt, blocks, view(1), memory, router.settings())
    assert memory.tree.replica_tokens.tolist() == [BLOCK_TOKENS + 3]


def test_nothing_is_drawn_without_a_limit_of_imbalance() -> None:
    assert RayPrefixAware.draws
    assert not RayPrefixAware().draws
    assert RayPrefixAware({"imbalanced_threshold": 8}).draws


def test_flags_are_a_deployments_configuration() -> None:
    """Ray's defaults are left out where they have no value in YAML or no effect."""
    head = (
        "request_router_config: {request_router_class: "
        "ray.serve.llm.request_router.PrefixCacheAffinityRouter, request_router_kwargs: "
    )
    assert " ".join(RayPrefixAware().flags()) == f"{head}{{match_rate_threshold: 0.1}}}}"
    router = RayPrefixAware({"imbalanced_threshold": 8, "eviction_interval_s": 5})
    assert " ".join(router.flags()) == (
        f"{head}{{match_rate_threshold: 0.1, imbalanced_threshold: 8, do_eviction: true, "
        "eviction_threshold_chars: 400000, eviction_target_chars: 360000, "
        "eviction_interval_secs: 5}}"
    )
