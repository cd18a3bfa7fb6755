"""vLLM's own balancer of data-parallel engines chooses as the router `vllm-dp` does."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvscope.routers.balancers import VllmDp

core_client = pytest.importorskip("vllm.v1.engine.core_client", reason="no vLLM here")
pytestmark = pytest.mark.engine

REQUESTS, BLOCKS = 2_000, 1_000


@pytest.mark.parametrize("engines", [2, 3, 8])
def test_every_choice_is_vllms(engines: int) -> None:
    """Whatever the coordinator published last, and whatever ends meanwhile; one front-end."""
    random, names = Random(engines), [bytes([number]) for number in range(engines)]
    client = SimpleNamespace(
        reqs_in_flight={},
        core_engines=names,
        lb_engines=[[0, 0, 0.0] for _ in names],
        client_count=1,
        engine_inflight=dict.fromkeys(names, 0),
        eng_start_index=0,
    )
    in_flight, processed = np.zeros((2, engines), dtype=np.int64)
    own = SimpleNamespace(in_flight=in_flight, processed=processed)
    scraped: Any = SimpleNamespace(
        **dict.fromkeys(("waiting", "running", "used_blocks", "processed"), 0 * processed)
    )
    for number in range(REQUESTS):
        if random.random() < 0.1:
            waiting, running, used = (
                np.array([random.choice((0, random.randrange(most))) for _ in names])
                for most in (20, 12, BLOCKS + 1)
            )
            scraped = SimpleNamespace(
                waiting=waiting, running=running, used_blocks=used, processed=processed.copy()
            )
            told = zip(waiting, running, used, strict=True)
            client.lb_engines = [[int(w), int(r), u / BLOCKS] for w, r, u in told]
        for request, engine in list(client.reqs_in_flight.items()):
            if random.random() < 0.08:
                del client.reqs_in_flight[request]
                client.engine_inflight[engine] -= 1
                in_flight[engine[0]] -= 1
        view = SimpleNamespace(replicas=engines, capacity_blocks=BLOCKS, own=own, scraped=scraped)
        chosen = VllmDp.choose(SimpleNamespace(request=number), None, view, None, None)  # type: ignore[arg-type]
        asked = SimpleNamespace(
            request_id=str(number), data_parallel_rank=None, pooling_params=None
        )
        balanced = core_client.DPLBAsyncMPClient.get_core_engine_for_request(client, asked)
        assert chosen == balanced[0], number
        in_flight[chosen] += 1
        processed[chosen] += 1
