"""A small tokenizer of a real kind, in a model's files, and libraries that start at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.chat_logs import isolated
from tests.chat_logs.models import write_model

FORKS = f"""
import json, os, socket, sys, time
sys.path[:] = {sys.path!r}
import kvscope.chat_logs.template, kvscope.chat_logs.tokenizer, tokenizers
from kvscope.chat_logs.isolated import serve
with socket.socket(fileno=int(sys.argv[1])) as door:
    while (received := socket.recv_fds(door, 1 << 20, 1))[0]:
        environment, (pipe,), *_ = received
        if number := os.fork():
            os.close(pipe)
            door.send(number.to_bytes(8))
            continue
        os.environ.clear()
        os.environ.update(json.loads(environment))
        time.tzset()
        try:
            serve(str(pipe))
        finally:
            os._exit(0)
"""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture(scope="session")
def forks() -> Iterator[type]:
    """Yield what stands for Popen: a fork of a process that has imported both libraries.

    To import them takes 0.2 s, longer than a small test; attacks on libraries start them as such.
    """
    door, its = socket.socketpair()
    command = [sys.executable, "-c", FORKS, str(its.fileno())]
    with its:
        nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, pass_fds=[its.fileno()], **nowhere)
    one_at_a_time = Lock()

    class Fork:
        """One such process. It is not waited for, so that its number is not another's."""

        def __init__(self, _: Any, *, pass_fds: list[int], **__: Any) -> None:
            with one_at_a_time:
                socket.send_fds(door, [json.dumps({**os.environ}).encode()], pass_fds)
                self.number = int.from_bytes(door.recv(8))

        def kill(self) -> None:
            """End the process, if it has not ended."""
            with suppress(ProcessLookupError):
                os.kill(self.number, signal.SIGKILL)

        def wait(self) -> None:
            """Let the other process wait."""

    with door:
        yield Fork
    process.wait()


@pytest.fixture(autouse=True, scope="module")
def _libraries_are_forked(forks: type) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for_it_alone = SimpleNamespace(Popen=forks, DEVNULL=subprocess.DEVNULL)
        patched.setattr(isolated, "subprocess", for_it_alone)
        yield
