"""Ray Serve LLM's own prefix-aware router, in this process: no cluster, no actor, no network.

Its class, its bases and its tree are those of the wheel. Stand-ins: packages whose import starts
Serve are empty; replicas answer with the load that the test counts; calls of the tree's actor are
calls of the tree, whose thread of evictions runs when the test says so; replicas are numbered, and
sets have them in that order; pairs are drawn by kvscope's dice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self
from unittest.mock import MagicMock

import pytest
import ray

from kvscope.core.arrays import Int64s
from kvscope.routers.base import draw

_SERVE, _LLM = "ray.serve", "ray.llm._internal.serve"
_POLICY = f"{_LLM}.routing_policies.prefix_aware"
_ROUTERS = f"{_SERVE}._private.request_router"
_NO_LIMIT = 10**9  # requests in flight: Ray Serve LLM's default


@contextmanager
def ray_serve() -> Iterator[None]:
    """Have Ray's modules as its routers need them here."""
    with pytest.MonkeyPatch.context() as patched:
        for name in (_SERVE, f"{_SERVE}.llm", _LLM):
            shell = ModuleType(name)
            shell.__path__ = [str(Path(ray.__file__).parents[1].joinpath(*name.split(".")))]
            patched.setitem(sys.modules, name, shell)
        patched.setitem(sys.modules, f"{_SERVE}._private.http_util", MagicMock())
        policy, ticks = import_module(f"{_POLICY}.prefix_aware_router"), count()
        patched.setattr(policy, "ray", SimpleNamespace(get=lambda result: result))
        patched.setattr(policy, "time", SimpleNamespace(time=lambda: float(next(ticks))))
        patched.setattr(import_module(f"{_ROUTERS}.pow_2_router"), "random", _Dice())
        common = import_module(f"{_SERVE}._private.common")
        patched.setattr(common.ReplicaID, "__hash__", lambda replica: int(replica.unique_id))
        yield


class RayRouter:
    """The router that a deployment's configuration names, and N replicas, within `ray_serve`.

    `send` returns the replica that gets a request and holds it until `finish`.
    """

    def __init__(self, config: dict[str, Any], replicas: int) -> None:
        module, _, name = config["request_router_class"].rpartition(".")
        kind = getattr(import_module(module), name)
        self._common = import_module(f"{_SERVE}._private.common")
        self._deployment = self._common.DeploymentID("llm", "app")
        self._loop, self._sent = asyncio.new_event_loop(), count()
        self.load: list[int] = []
        self.now_s = 0.0
        self.tree = _new_tree()
        self._router = kind(
            deployment_id=self._deployment,
            handle_source=self._common.DeploymentHandleSource.UNKNOWN,
            use_replica_queue_len_cache=True,
            get_curr_time_s=lambda: self.now_s,
        )
        self._router.initialize_state(
            **config["request_router_kwargs"], tree_actor=_Actor(self.tree)
        )
        self.set_replicas(replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(asyncio.sleep(0))  # what was begun comes to an end
        self._loop.close()

    def set_replicas(self, replicas: int) -> None:
        """Let all requests end, then so many replicas serve; those that were there before stay."""
        for replica, in_flight in enumerate(self.load):
            for _ in range(in_flight):
                self.finish(replica)
        self.load = [0] * replicas
        serving = [self._replica(number) for number in range(replicas)]

        async def update() -> None:
            self._router.update_replicas(serving)

        self._loop.run_until_complete(update())

    def send(self, request: Any, dice: Int64s) -> int:
        """Route a request, with pairs drawn as the dice would now, and return its replica."""
        import_module(f"{_ROUTERS}.pow_2_router").random.dice = dice.copy()
        number = str(next(self._sent))

        async def route() -> int:
            pending = import_module(f"{_ROUTERS}.common").PendingRequest(
                [request], {}, self._common.RequestMetadata(number, number)
            )
            replica = await self._router._choose_replica_for_request(pending)
            chosen = int(replica.replica_id.unique_id)
            self.load[chosen] += 1
            self._router.on_send_request(replica.replica_id)
            self._router.on_new_queue_len_info(replica.replica_id, self.load[chosen])
            self._router.on_request_routed(pending, replica.replica_id, None)
            return chosen

        return self._loop.run_until_complete(route())

    def finish(self, replica: int) -> None:
        """Let a request of a replica end."""
        self.load[replica] -= 1
        self._router.decrement_queue_len_cache(self._id(replica))

    def characters(self) -> list[int]:
        """Return how many characters of each replica the tree has."""
        names = [self._id(number).to_full_id_str() for number in range(len(self.load))]
        assert list(self.tree.tenant_to_char_count) == names
        return list(self.tree.tenant_to_char_count.values())

    def _id(self, number: int) -> Any:
        return self._common.ReplicaID(str(number), self._deployment)

    def _replica(self, number: int) -> SimpleNamespace:
        async def get_queue_len(deadline_s: float) -> int:
            return self.load[number]

        return SimpleNamespace(
            replica_id=self._id(number),
            node_id=None,
            availability_zone=None,
            multiplexed_model_ids=set(),
            max_ongoing_requests=_NO_LIMIT,
            get_queue_len=get_queue_len,
        )


def _new_tree() -> Any:
    """Return a prefix tree that evicts on `evict`, as its thread does after each interval."""
    kind: Any = import_module(f"{_POLICY}.prefix_tree").PrefixTree

    class Tree(kind):  # type: ignore[misc]
        def start_eviction_loop(self, *settings: float) -> None:
            self.settings = settings

        def evict(self) -> None:
            is_last = iter((False, True))
            self._eviction_stop_event = SimpleNamespace(
                is_set=lambda: False, wait=lambda _: next(is_last)
            )
            self._run_eviction_loop(*self.settings)

    return Tree()


class _Actor:
    """Calls an object at once where Ray would call it from afar."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=getattr(self._target, name))


class _Dice:
    """In place of Python's `random`: draws the pair that kvscope draws with `dice`."""

    dice: Int64s
    first: tuple[int, int] | None = None

    def getrandbits(self, _: int) -> int:
        """Return 1 where the first of two replicas is drawn first."""
        return 1 - draw(self.dice, 2)

    def randrange(self, below: int) -> int:
        """Return the first of a pair, then the place of the second among the others."""
        if self.first is None:
            self.first = draw(self.dice, below), below
            return self.first[0]
        (first, replicas), self.first = self.first, None
        second = (first + 1 + draw(self.dice, below)) % replicas
        return second - (second > first)
