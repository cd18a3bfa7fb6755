"""Failures inside kvscope's plugin while a real vLLM serves: one at a time, in whatever is called.

The functions are found, not listed: all of kvscope's that a run of the same traffic without a
failure calls, so that no new one is left out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tiny_llama import VOCABULARY
from kvscope.learning.observer import Observer
from kvscope.vllm_plugin.guarded_queue import GuardedQueue

if TYPE_CHECKING:
    from tests.vllm_plugin.serving import Engine

ROOMS = ("kvscope.vllm_plugin.", "kvscope.learning.", "kvscope.policies.")
GUARDS = {Observer: ("tell", "fail"), GuardedQueue: tuple(vars(GuardedQueue))}
"""What catches failures: all else may fail."""
OUTSIDE = "kvscope.vllm_plugin.adapter"  # calls the observers and nothing that can fail
REQUESTS, OUTPUTS, BLOCKS = 14, 10, 64


class Injected(Exception):
    """The failure."""


@dataclass(frozen=True)
class Place:
    """A function of kvscope's, and the class that it is a method of, if any."""

    owner: Any
    name: str

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__qualname__', self.owner.__name__)}.{self.name}"


def places() -> list[Place]:
    """Return every function and method of the plugin that is loaded, but for the guards."""
    found = []
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith(ROOMS) or module_name == OUTSIDE:
            continue
        for name, value in sorted(vars(module).items()):
            if getattr(value, "__module__", None) != module_name:
                continue
            if isinstance(value, FunctionType):
                found.append(Place(module, name))
            elif isinstance(value, type):
                found += [
                    Place(value, method)
                    for method, body in sorted(vars(value).items())
                    if isinstance(body, FunctionType | staticmethod)
                    and not method.startswith("__")
                    and method not in GUARDS.get(value, ())
                ]
    return found


@contextmanager
def wrapped(place: Place, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function wherever modules of kvscope's have it."""
    body = vars(place.owner)[place.name]
    own = body.__func__ if isinstance(body, staticmethod) else body
    other = wrap(own)
    owners = [place.owner]
    if not isinstance(place.owner, type):
        modules = [value for name, value in sys.modules.items() if name.startswith(ROOMS)]
        owners = [each for each in modules if vars(each).get(place.name) is own]
    for owner in owners:
        setattr(owner, place.name, staticmethod(other) if isinstance(body, staticmethod) else other)
    try:
        yield
    finally:
        for owner in owners:
            setattr(owner, place.name, body)


def inject(engine: Engine, *, in_flight: int, after: int, among: tuple[str, ...]) -> list[Any]:
    """Serve the same traffic once for each place, which fails from call `after` on.

    `among` are the classes whose methods fail; without any, all places do. Returns for each what it
    is, how often it failed, and what went wrong outside of it, if anything did.
    """
    known = [place for place in places() if not among or str(place).partition(".")[0] in among]
    calls = dict.fromkeys(known, 0)

    def counting(place: Place) -> Callable[[Any], Any]:
        def wrap(own: Any) -> Any:
            def count(*of: Any, **more: Any) -> Any:
                calls[place] += 1
                return own(*of, **more)

            return count

        return wrap

    with ExitStack() as stack:
        for place in known:
            stack.enter_context(wrapped(place, counting(place)))
        wrong = served_wrongly(engine, in_flight)
    results: list[Any] = [["nothing", 0, wrong]]
    logging.getLogger("vllm.kvscope").setLevel(logging.CRITICAL)  # a traceback for each
    for place in [place for place, count in calls.items() if count]:
        results.append([str(place), *_with_failure(engine, place, in_flight, after)])
    return results


def _with_failure(engine: Engine, place: Place, in_flight: int, after: int) -> tuple[int, str]:
    calls = failed = 0

    def wrap(own: Any) -> Any:
        def fail(*of: Any, **more: Any) -> Any:
            nonlocal calls, failed
            calls += 1
            if calls <= after:
                return own(*of, **more)
            failed += 1
            raise Injected(str(place))

        return fail

    with wrapped(place, wrap):
        wrong = served_wrongly(engine, in_flight)
    return failed, wrong


def served_wrongly(engine: Engine, in_flight: int) -> str:
    """Serve the traffic with a new scheduler; return what is wrong with it, or nothing."""
    from vllm import SamplingParams

    try:
        engine.new_scheduler(BLOCKS)
        pool = engine.scheduler.kv_cache_manager.block_pool
        rng = np.random.default_rng(11)
        histories: list[list[int]] = [rng.integers(0, VOCABULARY, 160).tolist() for _ in range(5)]
        wanted: dict[str, int] = {}
        outputs: dict[str, int] = {}
        llm = engine.llm.llm_engine
        while len(outputs) < REQUESTS + in_flight:
            while len(wanted) < REQUESTS + in_flight and len(wanted) - len(outputs) < in_flight:
                engine.requests += 1
                name, at = str(engine.requests), int(rng.integers(len(histories)))
                wanted[name] = int(rng.integers(1, OUTPUTS))
                histories[at] = histories[at][:300] + rng.integers(0, VOCABULARY, 20).tolist()
                params = SamplingParams(
                    max_tokens=wanted[name], ignore_eos=True, detokenize=False, temperature=0
                )
                prompt = {"prompt_token_ids": list(histories[at])}
                llm.add_request(name, prompt, params, session_id=f"session {at}")
            for result in llm.step():
                if result.finished:
                    outputs[result.request_id] = len(result.outputs[0].token_ids)
            if wrong := _wrong_blocks(pool):
                return wrong
        while engine.scheduler.has_requests():
            llm.step()
        if outputs != wanted:
            return f"outputs {outputs}, wanted {wanted}"
        if pool.free_block_queue.num_free_blocks != BLOCKS:
            return f"{pool.free_block_queue.num_free_blocks} of {BLOCKS} blocks are free"
        wrong = _wrong_blocks(pool)
        engine.scheduler.shutdown()
    except Exception as error:  # noqa: BLE001  (whatever reaches the engine is wrong)
        return f"{type(error).__name__}: {error}"
    return wrong


def _wrong_blocks(pool: Any) -> str:
    """Return how the free queue differs, as a set, from the blocks that no request uses."""
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    unused = [block.block_id for block in pool.blocks if not block.ref_cnt and not block.is_null]
    if sorted(free) != unused or pool.free_block_queue.num_free_blocks != len(unused):
        return f"free {sorted(free)}, unused {unused}"
    return ""
