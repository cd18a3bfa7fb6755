"""What every command prints with `--json` on the beginnings of three samples.

`python -m tests.golden.documents` writes documents.json.gz again. A change there is a change of
results or of a schema, which its commit has to explain.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

from kvscope.cli.app import run
from kvscope.core.files import data_folder

FILE = Path(__file__).parent / "documents.json.gz"
VARYING = {"kvscope", "created_at"}
"""Keys whose values are of the program or of the moment."""
_REQUESTS = {"to-c": 500, "birth-death": 800, "agent": 450}

CHAINS: dict[str, str] = {
    "catalog": """
        formats
        latencies
        gpus
        models
        policies
        routers
        deployment --gpu h100 --model llama3-8b --replicas 2
    """,
    "to-c": """
        ingest to-c.jsonl --name first
        analyze --model qwen2-7b --hbm 80GiB --capacity 1GiB,2GiB --capacity-blocks 100
        analyze --gpu h100 --model llama3-8b
        explain --forget --capacity-blocks 300
        fit --window 1m
        retention --model qwen2-7b
        simulate --forget --policy lru --capacity-blocks 500 --slo 200ms
        simulate --forget --policy gittins --capacity-blocks 300
        diff run:1 run:2
        runs --model qwen2-7b
        simulate --forget --model qwen2-7b --policy lru,tlru,gittins,belady --points 2 --slo 200ms
        simulate --forget --model qwen2-7b --tiers hbm=1GiB,dram=4GiB
        tune --forget --slo 300ms --policy tlru,wa --capacity-blocks 500 --output first.toml
        tune --forget --slo 200ms --view queued --policy tlru --output second.toml
        diff first.toml second.toml
        simulate --forget --recommendation first.toml
        fleet --forget --slo 300ms --router round-robin,session --replicas 1..2 --capacity-blocks \
            500 --policy lru,wa
        tune --fleet --forget --slo 300ms --router round-robin,session --policy wa \
            --gpu h100 --model llama3-8b
    """,
    "birth-death": """
        analyze birth-death.jsonl --outputs ignored --warmup 10%
        explain --policy tlru --param tlru.xi_tokens=400 --capacity-blocks 200
        explain --request 7
        fit --warmup 5%
        retention
        simulate --policy lru --capacity-model engine --points 2
        tune --slo 100ms --model qwen2-7b --output -
        analyze --from 10s --until 1m
        traces
        diff birth-death birth-death.jsonl
        doctor
    """,
    "agent": """
        ingest agent.jsonl
        explain --gpu h100 --model llama3-8b
        simulate --gpu l4 --model llama3-8b --slo 2s
        tune --gpu h100 --model llama3-8b --slo 2s --policy tlru --output third.toml
        fleet --gpu h100 --model llama3-8b --slo 2s --router round-robin,session --replicas 1..2
        tune --compare-tiers --forget --slo 10s --gpu l4 --model llama3-8b --num-gpu-blocks 1000 \
            --tier-size 1GiB --offload vllm@0.33:eviction_policy=lru --output -
    """,
}
"""Commands by the sample that they work on, each with the store that those before it left."""


def documents(chain: str) -> dict[str, Any]:
    """Return the document of each command of a chain, run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        if chain in _REQUESTS:
            with gzip.open(data_folder("sample_traces") / f"{chain}.jsonl.gz") as lines:
                beginning = b"".join(islice(lines, _REQUESTS[chain]))
            Path(f"{chain}.jsonl").write_bytes(beginning)
        commands = CHAINS[chain].strip().splitlines()
        return {name: _document(name) for name in (" ".join(each.split()) for each in commands)}


def _document(command: str) -> Any:
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = run([*command.split(), "--json"])
    assert code == 0, f"kvscope {command} ended with {code}"
    return constant(json.loads(printed.getvalue()))


def constant(value: Any) -> Any:
    """Return a document without what varies from run to run."""
    if isinstance(value, dict):
        return {key: constant(inner) for key, inner in value.items() if key not in VARYING}
    return [constant(inner) for inner in value] if isinstance(value, list) else value


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a document with its place, in the document's order."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{place}.{key}")
    elif isinstance(value, list) and value:
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{place}[{at}]")
    else:
        yield place, value


def differences(before: Any, after: Any, rel_tol: float = 1e-9) -> Iterator[str]:
    """Yield in words every leaf that went, came or changed, and whether the order of keys did."""
    was, now = dict(leaves(before)), dict(leaves(after))
    for place in was | now:
        if place not in now:
            yield f"{place} went"
        elif place not in was:
            yield f"{place} is new: {now[place]!r}"
        elif not _same(was[place], now[place], rel_tol):
            yield f"{place} was {was[place]!r}, is {now[place]!r}"
    if list(was) != list(now) and set(was) == set(now):
        yield "the order of the keys changed"


def _same(before: Any, after: Any, rel_tol: float) -> bool:
    """Return whether two leaves are equal; columns are summed in parallel, in any order."""
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=rel_tol)
    return type(before) is type(after) and before == after


def write() -> None:
    """Write the golden file as it should be now."""
    every = {chain: documents(chain) for chain in CHAINS}
    text = json.dumps(every, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    write()
