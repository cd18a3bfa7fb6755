"""A Ray cluster as an executor: each step is a Ray task with one core and the memory it needs.

Ray schedules the tasks, repeats those whose worker or node is lost, rebuilds lost objects and moves
objects to disk if memory is full. A step has the same result wherever and however often it runs.

Source: Ray 2.60, ray.init, ray.remote (`max_retries`), ray.wait, ray.cluster_utils.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from threading import Event
from typing import Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import kvscope
from kvscope.core.errors import InputError, KvscopeError, UsageError
from kvscope.core.executor import PROCESS_BYTES, Executor
from kvscope.core.memory import OutOfMemoryError
from kvscope.core.units import format_size

# Ray writes what it repeats to standard output, where commands print their results. It reads this
# name when it is imported.
_REPEATED = "^A worker died|_run_on_node|marked dead"
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _REPEATED)

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise UsageError(
        "needs Ray", where="--on", remedy="pip install 'kvscope[ray]', on each node"
    ) from error

RETRIES = 3
"""How often a step is repeated whose worker or node was lost."""

_LOOK_EVERY_S = 0.5
_ANSWER_S = 10.0

R = TypeVar("R")
T = TypeVar("T")


class RayCluster(Executor):
    """A connection to a Ray cluster; the end of the `with` block closes it if the block opened it.

    `address` is HOST:PORT of the head node, ray://HOST:PORT of the Ray Client server, or "ray": the
    cluster that RAY_ADDRESS names, else a new one on this machine with `workers` cores (default:
    all). A node without the file `seen_by_all`, if stated, raises InputError instead of running
    steps. Entering raises UsageError if there is no such cluster.
    """

    def __init__(
        self, address: str, *, workers: int | None = None, seen_by_all: str | None = None
    ) -> None:
        self._address = os.environ.get("RAY_ADDRESS", "local") if address == "ray" else address
        self._new_workers = workers
        self._seen_by_all = seen_by_all
        self._is_mine = False
        self._printing = ExitStack()
        self._shared: WeakKeyDictionary[Any, tuple[int, Any]] = WeakKeyDictionary()
        if workers is not None and self._address != "local":
            raise UsageError(
                f"the cluster at {self._address} has as many as its nodes have cores",
                where="--workers",
                remedy="leave it out",
            )

    def __enter__(self) -> Self:
        if not ray.is_initialized():
            self._connect()
            self._is_mine = True
        self._printing.enter_context(redirect_stdout(sys.stderr))  # Ray's other messages
        nodes = _nodes()
        if not nodes:
            self.__exit__()
            raise UsageError(
                "the cluster has no node with a core for tasks",
                where=f"--on {self._address}",
                remedy="start one with `ray start --address`",
            )
        self.workers = int(max(node["CPU"] for node in nodes))
        self.machines = len(nodes)
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_mine:
            ray.shutdown()
        self._printing.close()

    @property
    def free_bytes(self) -> int | None:
        """Memory for tasks, in bytes, on the node with the least; None if one states none."""
        return int(min(node.get("memory", 0) for node in _nodes())) or None

    def shared(self, value: T, version: int | None = None) -> T:
        """Put the value into Ray's object store, once per `version`; return its reference."""
        if version is None:
            return cast("T", ray.put(value))
        if version != self._shared.get(value, (None, None))[0]:
            self._shared[value] = version, ray.put(value)
        return cast("T", self._shared[value][1])

    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Yield as `Executor.results`; after `stop`, running steps are cancelled.

        Raises a step's own error, KvscopeError for a step lost more than RETRIES times, and
        OutOfMemoryError if no node has `each_bytes`, for which Ray would wait forever.
        """
        memory = int(each_bytes) + PROCESS_BYTES
        most = int(max((node.get("memory", 0) for node in _nodes()), default=memory))
        if tasks and memory > most:
            raise OutOfMemoryError(
                f"a step takes about {format_size(memory)} of memory, and no node has more than"
                f" {format_size(most)} for tasks",
                where=f"--on {self._address}",
                remedy="start a node with more (`ray start --memory`), ingest with less --memory,"
                " or replay with --sample",
            )
        task_of = ray.remote(num_cpus=1, memory=memory, max_retries=RETRIES)(_run_on_node)
        about = (kvscope.__version__, self._seen_by_all)
        number_of = {
            task_of.remote(about, step, *before, task): number for number, task in enumerate(tasks)
        }
        waiting = list(number_of)
        try:
            while waiting and not (stop is not None and stop.is_set()):
                ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_EVERY_S)
                for reference in ready:
                    yield number_of.pop(reference), _value(reference)
        finally:
            for reference in number_of:  # nothing to do for those that are finished
                ray.cancel(reference)

    def _connect(self) -> None:
        settings: dict[str, Any] = {}
        if self._address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a trace leaves here
            settings = {"include_dashboard": False, "num_cpus": self._new_workers}
        else:
            _require_answer(self._address)
        try:
            ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, **settings)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"no connection ({_first_line(error)})",
                where=f"--on {self._address}",
                remedy="take the address, the versions and the RAY_AUTH_MODE of `ray start --head`",
            ) from error


def _nodes() -> list[dict[str, float]]:
    """Return the resources of each live node with at least one core for tasks."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [node for node in alive if node.get("CPU", 0) >= 1]


def _require_answer(address: str) -> None:
    """Raise UsageError if nothing listens at `address`: Ray would retry for minutes, then exit."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no connection ({error})",
            where=f"--on {address}",
            remedy="take the address that `ray start --head` printed",
        ) from error


def _run_on_node(about: tuple[str, str | None], step: Callable[..., R], *arguments: Any) -> R:
    """Return the result of `step`, run on this node.

    `about` is the version of kvscope that the node must have, else UsageError is raised, and a file
    that it must see, else InputError; None: no file.
    """
    version, seen_by_all = about
    if kvscope.__version__ != version:
        raise UsageError(
            f"has kvscope {kvscope.__version__}, not {version}",
            where=_node(),
            remedy="install the same on all nodes",
        )
    if seen_by_all is not None and not os.path.exists(seen_by_all):  # noqa: PTH110 - any path
        raise InputError("is not there", where=f"{seen_by_all} on {_node()}", remedy=_SAME_FILES)
    try:
        return step(*arguments)
    except InputError as error:
        if isinstance(error.__cause__, OSError):
            raise InputError(
                error.what, where=f"{error.where} on {_node()}", remedy=_SAME_FILES
            ) from error
        raise


_SAME_FILES = "all nodes need the folder at the same path"


def _node() -> str:
    return f"node {ray.util.get_node_ip_address()}"


def _value(reference: Any) -> Any:
    """Return the result of a finished task, or raise the step's error."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from error
    except RayError as error:
        raise KvscopeError(
            f"a step was lost {RETRIES + 1} times ({_first_line(error)})",
            remedy="run it again: finished steps are kept",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
