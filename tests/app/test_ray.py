"""What a Ray cluster makes equals what this process makes, whatever the cluster loses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from kvscope.cli.app import run
from kvscope.core.errors import ExitCode, InputError, KvscopeError
from kvscope.core.executor import PROCESS_BYTES, Executor
from kvscope.core.files import data_folder
from kvscope.core.memory import OutOfMemoryError
from kvscope.core.ray_cluster import RETRIES, RayCluster
from kvscope.core.units import GIB, MIB
from kvscope.datasets.shards import build_shard
from kvscope.store.folder import MANIFEST, PLAN
from tests.app.test_elsewhere import SWEEPS, document
from tests.cli.shell import Streams
from tests.datasets import made

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:::ray"),
]

R = TypeVar("R")
MEMORY = 5 * GIB
NODE = {"num_cpus": 1, "object_store_memory": 80 * MIB, "memory": MEMORY}
SAMPLE = data_folder("sample_traces") / "regime-change.jsonl.gz"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster of two nodes on this machine, in whose process steps are submitted."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # workers need `tests`
        nodes = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
        nodes.add_node(**NODE)
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes
        ray.shutdown()
        nodes.shutdown()


class Disturbed(Executor):
    """A cluster whose steps go through `around`; `after` is called with each result."""

    def __init__(
        self, cluster: RayCluster, around: Callable[..., Any], after: Callable[[], None]
    ) -> None:
        self.workers, self._cluster = cluster.workers, cluster
        self._around, self._after = around, after

    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Yield the results of the steps."""
        around = partial(self._around, step)
        results = self._cluster.results(around, tasks, *before, stop=stop, each_bytes=each_bytes)
        for result in results:
            self._after()
            yield result


def killed_once(marks: Path, step: Callable[[Any], None], task: Any) -> None:
    """Do half of a step, then end this process as the system does; once for each kind of step."""
    mark = marks / step.__name__
    if not mark.exists():
        mark.touch()
        (Path(task.folder).parent / ".half").mkdir(parents=True, exist_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
    step(task)


def held(mark: Path, node: str, step: Callable[[Any], None], task: Any) -> None:
    """Do the step; build no shard on this node, and elsewhere only once that one tries to."""
    if step is build_shard:
        if ray.get_runtime_context().get_node_id() == node:
            mark.touch()
            time.sleep(600)
        while not mark.exists():
            time.sleep(0.05)
    step(task)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the manifest that this process makes of the sample."""
    folder = tmp_path_factory.mktemp("here") / "d"
    made.dataset([SAMPLE], folder, made.options(3))
    return (folder / MANIFEST).read_bytes()


@pytest.mark.long
def test_killed_workers_change_nothing(cluster: Any, tmp_path: Path, manifest: bytes) -> None:
    """Ray repeats each step whose worker was killed; what it left half written goes away."""
    marks, folder = tmp_path / "marks", tmp_path / "d"
    marks.mkdir()
    with RayCluster("ray") as executor:
        assert (executor.workers, executor.machines) == (1, 2)
        disturbed = Disturbed(executor, partial(killed_once, marks), lambda: None)
        made.dataset([SAMPLE], folder, made.options(3), disturbed)
    assert len(list(marks.iterdir())) == 2
    assert (folder / MANIFEST).read_bytes() == manifest
    assert not [*folder.glob("**/.*")]


@pytest.mark.long
def test_a_lost_node_changes_nothing(cluster: Any, tmp_path: Path, manifest: bytes) -> None:
    """A node is removed while it runs a step, and another joins."""
    (node,) = cluster.worker_nodes
    mark = tmp_path / "mark"

    def lose() -> None:
        if mark.exists() and node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(**NODE)

    with RayCluster("ray") as executor:
        disturbed = Disturbed(executor, partial(held, mark, node.node_id), lose)
        made.dataset([SAMPLE], tmp_path / "d", made.options(3), disturbed)
    assert node not in cluster.worker_nodes
    assert (tmp_path / "d" / MANIFEST).read_bytes() == manifest


def killed(_: object) -> None:
    """End this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def refused(_: object) -> None:
    """Raise an error of kvscope."""
    raise InputError("no request", where="x:1", remedy="see it")


def test_errors_are_those_of_the_step(cluster: Any, tmp_path: Path) -> None:
    """An error keeps its place; a node that does not see the folder is named."""
    with RayCluster("ray") as executor, pytest.raises(InputError) as raised:
        list(executor.results(refused, [1]))
    assert (raised.value.where, str(raised.value)) == ("x:1", "x:1: no request; see it")
    missing = str(tmp_path / PLAN)
    with RayCluster("ray", seen_by_all=missing) as executor, pytest.raises(InputError) as raised:
        list(executor.results(refused, [1]))
    assert str(raised.value).startswith(f"{missing} on node ")


def reserved(_: object) -> float:
    """Return the memory that Ray keeps for this step."""
    return float(ray.get_runtime_context().get_assigned_resources()["memory"])


def test_steps_reserve_what_they_take(cluster: Any, tmp_path: Path, capsys: Streams) -> None:
    """So no node gets more at once than fit; what fits nowhere is refused and not waited for."""
    with RayCluster("ray") as executor:
        assert executor.free_bytes == MEMORY
        (result,) = executor.results(reserved, [1], each_bytes=3 * GIB)
        assert result == (0, 3 * GIB + PROCESS_BYTES)
        with pytest.raises(OutOfMemoryError, match="start a node with more"):
            list(executor.results(reserved, [1], each_bytes=MEMORY))
    into = ["ingest", str(SAMPLE), "--into", str(tmp_path / "d"), "--on", cluster.address]
    assert run([*into, "--memory", "60GiB"]) == ExitCode.FAILED
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert f"--on {cluster.address}: a step takes about 60 GiB of memory" in error
    assert "no node has more than 5 GiB" in error


@pytest.mark.long
def test_a_step_that_kills_each_worker_is_given_up(cluster: Any) -> None:
    """It is repeated as often as others, then ends the run."""
    with RayCluster("ray") as executor, pytest.raises(KvscopeError, match="steps are kept") as lost:
        list(executor.results(killed, [1]))
    assert f"lost {RETRIES + 1} times" in str(lost.value)


@pytest.mark.long
def test_results_alone_are_printed(cluster: Any, tmp_path: Path) -> None:
    """Ray's messages, which it prints to standard output, do not get there."""
    program = f"""
from pathlib import Path
from kvscope.core.ray_cluster import RayCluster
from tests.app.test_ray import killed_at_first
with RayCluster({cluster.address!r}) as executor:
    print(list(executor.results(killed_at_first, [Path({str(tmp_path / "mark")!r})])))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "[(0, 5)]\n")


def killed_at_first(mark: Path) -> int:
    """End this process where the mark is missing."""
    if mark.exists():
        return 5
    mark.touch()
    return killed(mark) or 0


def total(values: np.ndarray[Any, Any], more: int) -> int:
    """Return the sum of all."""
    return int(values.sum()) + more


@pytest.mark.long
def test_a_full_object_store_changes_nothing(cluster: Any) -> None:
    """More is shared than both stores hold: it goes to disk and comes back."""
    with RayCluster("ray") as executor:
        shared = [executor.shared(np.full(4 * MIB, k)) for k in range(8)]  # 256 MiB of 160
        sums = [dict(executor.results(total, [0, 1], each)) for each in shared]
    assert sums == [{0: k * 4 * MIB, 1: k * 4 * MIB + 1} for k in range(8)]


def test_ingest_on_a_cluster(
    cluster: Any,
    tmp_path: Path,
    capsys: Streams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command takes a cluster's address, and paths of this folder, which nodes are not in."""
    shutil.copy(SAMPLE, tmp_path / "a.jsonl.gz")
    monkeypatch.chdir(tmp_path)
    into = ["ingest", "a.jsonl.gz", "--shards", "3", "--into", "d"]
    assert run([*into, "--on", "nowhere"]) == ExitCode.USAGE
    assert run([*into, "--on", cluster.address, "--workers", "2"]) == ExitCode.USAGE
    assert "leave it out" in capsys.readouterr().err
    assert run([*into, "--on", cluster.address]) == ExitCode.DONE
    assert run([*into[:-1], "e", "--workers", "1"]) == ExitCode.DONE
    there, here = (Path(name, MANIFEST).read_bytes() for name in ("d", "e"))
    assert there == here
    said = capsys.readouterr().out.splitlines()  # Ray's own lines among them, on a busy machine
    first, second = (line for line in said if " requests" in line)
    assert first == second


@pytest.mark.long
@pytest.mark.parametrize("sweep", SWEEPS, ids=[" ".join(each[:2]) for each in SWEEPS])
def test_sweeps_on_a_cluster(
    cluster: Any, tmp_path: Path, capsys: Streams, sweep: Sequence[str]
) -> None:
    """Each replay is a task; the document has the same figures, field by field."""
    here = document(sweep, tmp_path, capsys)
    assert document([*sweep, "--on", cluster.address], tmp_path / "there", capsys) == here
