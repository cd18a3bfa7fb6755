"""What vLLM publishes of its cache is what kvscope reads from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kv_event_recording import serve
from kvscope.core.errors import EngineError
from kvscope.vllm_plugin.kv_events import BlockRemoved, BlockStored, EventBatch, batches
from tests.conformance.vllm_side import KVEventsConfig, vllm_events

pytestmark = pytest.mark.engine


def test_vllms_own_publisher_is_understood(tmp_path: Path) -> None:
    """Its batches as its own publisher packs and sends them, numbered without a gap."""
    endpoint = f"ipc://{tmp_path}/events"
    publisher = vllm_events.EventPublisherFactory.create(
        KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=f"{endpoint}_dp0")
    )
    stored = vllm_events.BlockStored(
        block_hashes=[b"a" * 32, b"b" * 32],
        parent_block_hash=None,
        token_ids=list(range(32)),
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        session_id="mine",
    )
    removed = vllm_events.BlockRemoved(block_hashes=[b"a" * 32], medium="GPU")
    sent = vllm_events.KVEventBatch(ts=5.0, events=[stored, removed])
    received: list[tuple[int, EventBatch]] = []
    stream = batches(f"{endpoint}_dp0", patience_s=0.2)
    next(stream)  # listening from now on
    for _ in range(3):
        publisher.publish(sent)
    while len(received) < 3:
        batch = next(stream)
        if batch is not None:
            received.append(batch)
    stream.close()
    publisher.shutdown()
    numbers = [number for number, _ in received]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert received[0][1] == EventBatch(
        5.0,
        [
            BlockStored([b"a" * 32, b"b" * 32], None, 16, "GPU", "mine"),
            BlockRemoved([b"a" * 32], "GPU"),
        ],
    )


@pytest.mark.parametrize("in_flight", [1, 16])
def test_requests_that_report_what_they_find_are_all_recorded(in_flight: int) -> None:
    """Turns without a pause; only one that reports the same as another in flight may be missed."""
    served = serve(150, in_flight, report=True)
    assert len(served.recorded) == pytest.approx(len(served.requests), abs=3)
    assert served.chains.unknown == 0


@pytest.mark.parametrize("in_flight", [1, 16])
def test_a_recording_says_how_many_requests_it_can_have_missed(in_flight: int) -> None:
    """Without reports: those that store nothing, and at most so many taken for output."""
    served = serve(150, in_flight, report=False)
    missed = len(served.requests) - len(served.recorded)
    assert served.chains.reported == 0
    assert missed - served.invisible <= 0.1 * len(served.requests)
    assert missed <= served.invisible + served.chains.unsure


def test_an_invalid_endpoint_gets_one_line() -> None:
    """A name that ZMQ does not take."""
    with pytest.raises(EngineError, match=r"nowhere: .*; name it as in --kv-events-config"):
        next(batches("nowhere"))
