"""Replays for a search: each question answered once, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from kvscope.errors import KvscopeError
from kvscope.policies.base import Policy
from kvscope.simulate.capacity_models import replayed
from kvscope.simulate.summary import Served
from kvscope.simulate.sweep import cores
from kvscope.simulate.workload import Asked, Workload
from kvscope.tune.objective import Target, Trial, tried

PolicyAt = tuple[Policy, int]
Key = tuple[str, str, tuple[tuple[str, float], ...], int]
Advance = Callable[[int], None]
T = TypeVar("T")
R = TypeVar("R")


class Stopped(KvscopeError):
    """Somebody asked to stop before the answer was there."""


class Evaluator:
    """Answers which TTFT a policy gives at a capacity, over one workload.

    `tried` holds every trial made, in the order of the questions. Once `stop` is set, questions
    raise Stopped. To be closed.
    """

    def __init__(self, workload: Workload, target: Target, *, stop: Event | None = None) -> None:
        self.workload = workload
        self.target = target
        self.tried: dict[Key, Trial] = {}
        self._stop = stop or Event()
        self._pool = ThreadPoolExecutor(cores(), thread_name_prefix="tune")

    def close(self) -> None:
        """Drop what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def trials(self, questions: Sequence[PolicyAt], advance: Advance | None = None) -> list[Trial]:
        """A trial for each question, in their order; `advance` is told of each replay made."""
        new = {_key(*one): one for one in questions if _key(*one) not in self.tried}
        self.workload.prepare([policy for policy, _ in new.values()])
        made = self.each(lambda one: self._try(*one), list(new.values()), advance)
        self.tried |= zip(new, made, strict=True)
        return [self.tried[_key(*one)] for one in questions]

    def each(
        self, work: Callable[[T], R], items: Sequence[T], advance: Advance | None = None
    ) -> list[R]:
        """What `work` makes of each item, on all cores; it must not come back here itself."""
        futures = [self._pool.submit(work, item) for item in items]
        made = []
        for future in futures:
            made.append(future.result())
            if advance is not None:
                advance(1)
        return made

    def trial(self, policy: Policy, capacity_blocks: int) -> Trial:
        """The trial of one question."""
        return self.trials([(policy, capacity_blocks)])[0]

    def served(self, policy: Policy, capacity_blocks: int) -> Served:
        """How each request fares, which no trial keeps."""
        if self._stop.is_set():
            raise Stopped("stopped before the search was finished")
        return replayed(self.workload, Asked(policy, capacity_blocks)).served

    def _try(self, policy: Policy, capacity_blocks: int) -> Trial:
        served = self.served(policy, capacity_blocks)
        return tried(policy, capacity_blocks, served, self.target)


def _key(policy: Policy, capacity_blocks: int) -> Key:
    return policy.name, policy.evicts, tuple(policy.values.items()), capacity_blocks
