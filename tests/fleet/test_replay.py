"""Fleets: what replicas hit and when, against plain Python and against replays of one cache."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope.fleet.replay as replaying
from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import UsageError
from kvscope.fleet.kernel import Asked, fleet_kernel
from kvscope.fleet.replay import FleetReplay, replay_fleet
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.costs import costs
from kvscope.replay.replay import Tables, replay
from kvscope.replay.traffic import Traffic
from kvscope.routers.balancers import LeastRequests, RoundRobin
from kvscope.routers.base import EVENT_LAG, MemorySizes, Prompt, Router, View
from kvscope.routers.registry import ROUTERS
from tests.long import long
from tests.oracles.fleet import simulate
from tests.policies import drawn
from tests.policies.traffics import long_traffic, traffics

PROFILE = LatencyProfile(
    "made", "made", 0.25, 0.125, 1 / 64, floor_s=0.5, decode_base_s=0.25, decode_request_s=0.125
)
ONLINE = [(policy, leaves) for policy, leaves in drawn.CASES if not policy.hindsight]


def asked(traffic: Traffic) -> Asked:
    """Return the whole path as what routers are told, and two sessions."""
    count = len(traffic.leaf)
    full = np.minimum(traffic.length, traffic.input_tokens // traffic.block_size)
    return Asked(
        traffic.leaf, traffic.length, full.astype(np.int32), np.arange(count, dtype=np.int64) % 2
    )


def sub_traffic(traffic: Traffic, members: Any) -> Traffic:
    """Return some requests of the traffic."""
    columns = {
        name: column[members]
        for name, column in traffic._asdict().items()
        if name not in {"block_size", "block_parent"}
    }
    return traffic._replace(**columns)


def check_split(
    traffic: Traffic, done: FleetReplay, policy: Policy, capacity: int, told: Tables
) -> None:
    """Check that every replica hits what one cache hits that is sent the same requests."""
    evictions = []
    for replica in range(done.replicas):
        members = np.flatnonzero(done.replica == replica)
        part = replay(
            sub_traffic(traffic, members), policy, capacity, tables=told.of_requests(members)
        )
        assert done.hit_blocks[members].tolist() == part.hit_blocks.tolist()
        evictions.append(part.evictions)
    if policy.values.get("ttl_s", np.inf) == np.inf:  # else others' requests let time pass too
        assert done.evictions.tolist() == evictions


@pytest.mark.parametrize(("policy", "leaves"), ONLINE, ids=drawn.case_name)
@settings(deadline=None, max_examples=10)
@given(st.data())
def test_each_replica_is_a_cache_of_its_own(
    policy: type[Policy], leaves: Leaves, data: st.DataObject
) -> None:
    """The kernel's Python source: any policy, as in a replay of what the replica was sent."""
    traffic = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    capacity = data.draw(drawn.capacities(traffic))
    told = data.draw(drawn.tables(policy.name))
    replicas = data.draw(st.integers(1, 3))
    capacity = min(capacity, 500)  # queue policies make room for a whole cache
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replaying, "fleet_kernel", lambda *of: fleet_kernel(*of).py_func)
        done = replay_fleet(
            traffic, asked(traffic), PROFILE, bound, RoundRobin(), replicas, capacity, tables=told
        )
    assert done.replica.tolist() == [r % replicas for r in range(len(traffic.leaf))]
    check_split(traffic, done, bound, capacity, told)


class Seen(NamedTuple):
    """What a router saw of R requests and N replicas (R x N): truth, and by KV events."""

    cached: Int32s
    reported: Int32s


class Informed(Router):
    """Choose in turn, and note what the view says of caches."""

    name = "informed"
    summary = "notes what it sees of caches"
    source = "made up"
    sees = "truth"
    parameters = (EVENT_LAG,)
    seen: ClassVar[Seen]

    def memory(self, sizes: MemorySizes, seed: int) -> Seen:
        """Return room for all that is seen."""
        rows = np.zeros((2, sizes.requests, sizes.replicas), dtype=np.int32)
        Informed.seen = Seen(rows[0], rows[1])
        return Informed.seen

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Any, p: Float64s) -> int:
        """Choose in turn."""
        memory.cached[prompt.request] = view.truth.cached_blocks
        memory.reported[prompt.request] = view.reported_blocks
        return prompt.request % view.replicas


@pytest.mark.parametrize(("policy", "leaves"), ONLINE, ids=drawn.case_name)
@settings(deadline=None, max_examples=5)
@given(st.data())
def test_late_events_report_what_caches_held(
    policy: type[Policy], leaves: Leaves, data: st.DataObject
) -> None:
    """The kernel's Python source: as if the request had come right after the last one reported."""
    traffic = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    capacity = min(data.draw(drawn.capacities(traffic)), 500)
    told = data.draw(drawn.tables(policy.name))
    replicas, lag_s = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([0.25, 1.0, 2.0]))

    def seen(requests: Traffic, lag_s: float) -> Seen:
        router = Informed({"event_lag_s": lag_s})
        replay_fleet(
            requests, asked(requests), PROFILE, bound, router, replicas, capacity, tables=told
        )
        return Informed.seen

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replaying, "fleet_kernel", lambda *of: fleet_kernel(*of).py_func)
        late = seen(traffic, lag_s)
        for request, now_s in enumerate(traffic.arrival_s.tolist()):
            reported = int(np.sum(traffic.arrival_s[:request] + lag_s <= now_s))
            early = sub_traffic(traffic, [*range(reported), request])
            if reported:
                early.arrival_s[-1] = early.arrival_s[-2]
            expected = seen(early, 0.0).cached[-1]
            assert late.reported[request].tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["lru", "tlru", long("gdfs"), long("s3fifo"), "wa", "gittins"])
def test_long_traffic_compiled(name: str) -> None:
    policy = next(known for known, _ in ONLINE if known.name == name)
    values = {"xi_percentile": 0.9} if policy is TLru else {}
    traffic, bound = long_traffic(4_000, 3), policy(values)
    told = drawn.plain_tables(policy)
    done = replay_fleet(
        traffic, asked(traffic), PROFILE, bound, LeastRequests(), 3, 60, tables=told
    )
    assert len(set(done.replica.tolist())) == 3
    check_split(traffic, done, bound, 60, told)


@pytest.mark.parametrize("kind", ROUTERS, ids=lambda kind: kind.name)
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_equals_the_oracle(kind: type[Router], data: st.DataObject) -> None:
    """Choices, hits and times of any router, open and closed loop, are the oracle's."""
    traffic = data.draw(traffics(most=16))
    count = len(traffic.leaf)
    traffic = traffic._replace(
        anonymous=np.zeros_like(traffic.anonymous),
        parent=np.array(
            [data.draw(st.integers(-1, request - 1)) for request in range(count)], dtype=np.int32
        ),
    )
    think_s = None
    if data.draw(st.booleans()):
        drawn_s = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 3.0]), min_size=count))
        think_s = np.where(traffic.parent >= 0, drawn_s[:count], -1.0)
    capacity = data.draw(drawn.capacities(traffic))
    replicas, seed = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 9))
    delays_s = {"scrape_s": [0.5, 2.0], "event_lag_s": [0.0, 0.5, 3.0]}
    known = {parameter.name for parameter in kind.parameters} & delays_s.keys()
    router = kind({name: data.draw(st.sampled_from(delays_s[name])) for name in sorted(known)})
    done = replay_fleet(
        traffic,
        asked(traffic),
        PROFILE,
        Lru(),
        router,
        replicas,
        capacity,
        think_s=think_s,
        seed=seed,
    )
    sent = simulate(
        traffic, asked(traffic), costs(PROFILE), router, replicas, capacity, think_s, seed
    )
    assert done.order.tolist() == [one.request for one in sent]
    for one in sent:
        r = one.request
        assert (done.replica[r], done.hit_blocks[r], done.best_blocks[r]) == (
            one.replica,
            one.hit,
            one.best,
        )
        times = done.arrival_s[r], done.begin_s[r], done.token_s[r], done.end_s[r]
        assert times == pytest.approx((one.arrival_s, one.begin_s, one.token_s, one.end_s))
    assert np.all(done.best_blocks >= done.hit_blocks)


def test_hindsight_is_refused_where_the_future_depends_on_the_router() -> None:
    traffic = long_traffic(20, 1)
    with pytest.raises(UsageError, match="knows the future"):
        replay_fleet(traffic, asked(traffic), PROFILE, Belady(), RoundRobin(), 2, 10)


@pytest.mark.parametrize("replicas", [0, 5_000])
def test_counts_that_no_fleet_has_are_refused(replicas: int) -> None:
    traffic = long_traffic(20, 1)
    with pytest.raises(UsageError, match="replicas"):
        replay_fleet(traffic, asked(traffic), PROFILE, Lru(), RoundRobin(), replicas, 10)
