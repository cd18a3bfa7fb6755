from __future__ import annotations

import threading
import time

import pytest

from kvscope.core.errors import EngineError, UsageError
from kvscope.core.trace import OUTPUTS
from kvscope.serving.client import (
    BlockPool,
    Endpoint,
    InSteps,
    block_pool,
    completion,
    time_in_steps,
)
from tests.serving.fake import Behaviour, fake_server


def test_an_answer_tells_what_the_server_told() -> None:
    """Counts, hits and times; a prompt sent again hits all but what its last token needs."""
    with fake_server(Behaviour(base_s=0.02)) as url:
        endpoint = Endpoint(url + "/v1/")
        assert endpoint.healthy()
        assert endpoint.version() == "1.2.3"
        served = endpoint.model()
        assert (served.name, served.max_model_len) == ("fake", 8192)
        body = completion("fake", range(100, 164), 3)
        first, second = endpoint.complete(body), endpoint.complete(body)
    assert (first.error, first.cached_tokens, second.cached_tokens) == ("", 0, 48)
    assert (first.prompt_tokens, first.output_tokens) == (64, 3)
    assert first.sent_s < first.first_s <= first.finished_s
    assert first.ttft_s >= 0.02


def test_ttft_ends_with_the_first_output_token() -> None:
    """A second token that takes half a second more does not count."""
    with fake_server(Behaviour(per_output_s=0.5)) as url:
        answer = Endpoint(url).complete(completion("fake", range(64), 2))
    assert answer.ttft_s < 0.5 <= answer.finished_s - answer.sent_s


def test_a_request_asks_for_exactly_its_outputs() -> None:
    """Neither fewer nor more tokens, streamed, with usage, and extensions under vLLM's name."""
    does = Behaviour()
    with fake_server(does) as url:
        Endpoint(url).complete(completion("fake", [1], 4, xargs={OUTPUTS: [5] * 4}, session="7"))
    (asked,) = does.seen
    assert (asked["max_tokens"], asked["min_tokens"], asked["ignore_eos"]) == (4, 4, True)
    assert asked["stream_options"] == {"include_usage": True}
    assert (asked["vllm_xargs"], asked["session_id"]) == ({OUTPUTS: [5] * 4}, "7")


def test_failures_are_told_not_raised() -> None:
    """A refusal says the server's own words; a stall and an end in the middle are told apart."""
    with fake_server(Behaviour(refuses_from=0)) as url:
        refused = Endpoint(url).complete(completion("fake", [1], 1))
    with fake_server(Behaviour(stalls_at=0, stall_s=0.5)) as url:
        stalled = Endpoint(url, timeout_s=0.1).complete(completion("fake", [1], 1))
    with fake_server(Behaviour(dies_at=0)) as url:
        broken = Endpoint(url).complete(completion("fake", [1], 1))
    assert (refused.status, refused.error) == (400, "status 400: not today")
    assert stalled.error == "timed out"
    assert broken.error.startswith("broke off")


def test_a_pending_answer_can_be_given_up() -> None:
    """Whoever waits for it is released at once."""
    with fake_server(Behaviour(stalls_at=0, stall_s=2.0)) as url:
        pending = Endpoint(url).send(completion("fake", [1], 1))
        threading.Timer(0.1, pending.cancel).start()
        started = time.monotonic()
        answer = pending.read()
        assert answer.error == "given up"
        assert time.monotonic() - started < 2.0


def test_nobody_there() -> None:
    """One line that says where and what to do."""
    endpoint = Endpoint("http://127.0.0.1:9")
    assert not endpoint.healthy()
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9: no answer .*--url"):
        endpoint.model()
    with pytest.raises(EngineError, match="no answer"):
        endpoint.complete(completion("fake", [1], 1))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(UsageError, match="no address"):
        Endpoint(url)


def test_an_unknown_model_names_those_there_are() -> None:
    """The error is the remedy."""
    with fake_server(Behaviour()) as url, pytest.raises(EngineError, match="it serves fake"):
        Endpoint(url).model("other")


def test_the_time_in_steps_is_read_from_vllms_metrics() -> None:
    """Of all its engines; metrics of others tell nothing."""
    lines = [
        f'vllm:request_{name}{{engine="{engine}",model_name="x y"}} {value}'
        for engine in (0, 1)
        for name, value in (
            ("queue_time_seconds_sum", 0.25),
            ("prefill_time_seconds_sum", 1.5),
            ("prefill_time_seconds_count", 3.0),
        )
    ]
    assert time_in_steps("# HELP x\n" + "\n".join(lines)) == InSteps(6, 3.5)
    assert time_in_steps("vllm:cache_config_info{} 1.0") is None


def test_the_pool_is_read_from_vllms_metrics() -> None:
    """Block 0 is never used; metrics without the gauge tell nothing."""
    line = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="201",x="a,b"} 1.0\n'
    assert block_pool("# HELP x\n" + line) == BlockPool(200, 32)
    assert block_pool('vllm:cache_config_info{num_gpu_blocks="None"} 1.0') is None
    assert block_pool("up 1") is None
