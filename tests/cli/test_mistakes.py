"""Mistakes of every command: one line and an exit code before any work.

What options and files say is refused without a trace being read, what a trace says without a kernel
being loaded. Both are forbidden here, so that a check that comes late fails.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from kvscope.app import traces
from kvscope.cli.app import run
from kvscope.core.jit import Kernel
from kvscope.store.db import open_store
from tests.cli.replayed import write_short
from tests.cli.shell import Streams

Rows = Mapping[str, tuple[tuple[str, int, str], ...]]

_GPU = "--gpu l4 --model llama3-8b --num-gpu-blocks 1000"
_TIERS = f"tune short --slo 20s --output - --compare-tiers {_GPU}"
_RANKS = "--gpu h200 --model deepseek-v3 --dp 8"
_HYBRID = "--model gpt-oss-20b --num-gpu-blocks 9000 --latency llama2-7b-a100"
_CHUNKS = "--offload vllm@0.33:blocks_per_chunk=3 --param lru-retention.retention_tokens=512"
_SWAPPED = "--model llama3-8b --tiers hbm=1GiB,dram=1GiB"
_ON_FILES = f"{_SWAPPED},ssd=1GiB"

OPTIONS: Rows = {
    "analyze short": (
        ("--hbm 80GiB", 2, "--hbm: needs a model"),
        ("--capacity 5GiB", 2, "--capacity: needs a model"),
        ("--compat nope", 2, "'nope' is not one of"),
        ("--compat libcachesim --warmup 20%", 2, "leave out --outputs and --warmup"),
        ("--warmup 100%", 2, "--warmup: not below 100%"),
        ("--from 20s --until 10s", 2, "--from, --until: ends before it begins"),
        ("--until 10s --from 10s", 2, "exchange them"),
        ("--memory 8GiB", 2, "--memory: 'short' is no dataset"),
        ("--latency nope", 2, "--latency: no latency profile 'nope'"),
        (f"{_GPU} --hbm 80GiB", 2, "--hbm: the deployment (--gpu) has a pool of its own"),
        ("--capacity-blocks many", 2, "'many' is not a number of blocks"),
        ("--capacity-blocks 1,0", 2, "'0' is not a number of blocks"),
        ("--model llama3-8b --hbm 0GiB", 2, "'0GiB' is not above zero"),
        ("--model llama3-8b --capacity lots", 2, "'lots' is not a size"),
        ("--block-size 0", 2, "'0' is not a whole number from 1 on"),
        ("--fail-on hitrate<1%", 2, "no figure 'hitrate' here; did you mean hit-rate?"),
        ("--fail-on p95>1s", 2, "there is no figure 'p95' here; known here: hit-rate"),
        ("--fail-on verdict=switch", 2, "no figure 'verdict' here; known here: hit-rate"),
        ("--fail-on lru.hit-rate<40%", 2, "needs one capacity; name one with --capacity-blocks"),
        ("--capacity-blocks 1,2 --fail-on lru.hit-rate<40%", 2, "needs one capacity; name one"),
        ("--fail-on regression>5% --baseline run:1", 2, "a stored run is a replay"),
    ),
    "analyze": (
        ("shorr", 3, "did you mean 'short'?"),
        ("short.jsonl --memory 8GiB", 2, "'short.jsonl' is no dataset"),
        ("short.jsonl --html short.jsonl", 2, "--html short.jsonl: the file is read, too"),
        ("short.jsonl --db no/k.duckdb", 3, "no/k.duckdb: its folder does not exist"),
        ("short.jsonl --db /proc/k.duckdb", 3, "/proc/k.duckdb: "),
    ),
    "explain short": (
        ("--policy lru,tlru", 2, "policies or settings"),
        ("--policy fifo", 2, "needs a capacity"),
        ("--policy nope --capacity-blocks 4", 2, "unknown policy 'nope'"),
        ("--policy tlru --param tlru.xi_tokens=1,2 --capacity-blocks 4", 2, "2 policies or"),
        ("--policy ttl --capacity-blocks 4", 2, "ttl needs ttl_s"),
        ("--capacity 1GiB --capacity-blocks 5", 2, "both state the capacity"),
        ("--capacity 1GiB", 2, "bytes need a model"),
        (f"{_GPU} --policy lfu", 2, "lfu cannot order the blocks of an engine"),
        ("--by type", 2, "--by type: without a capacity nothing is evicted"),
        ("--by model --capacity-blocks 4", 2, "'model' is not one of"),
        ("--fail-on evicted>3", 2, "--fail-on"),
    ),
    "fit short": (
        ("--warmup 100%", 2, "--warmup: not below 100%"),
        ("--window 0s", 2, "'0s' is not above zero"),
        ("--window 'an hour'", 2, "'an hour' is not a duration"),
        ("--policy gittins", 2, "is for --export"),
        ("--param gittins.xi_tokens=1", 2, "is for --export"),
        ("--capacity-blocks 1", 2, "is for --export"),
        ("--deployment x.toml", 2, "is for --export"),
        ("--export - --policy etlru", 2, "etlru orders blocks by more"),
        ("--export - --policy gittins,tlru", 2, "'gittins,tlru' is more than one policy"),
        ("--export - --policy ttl", 2, "ttl needs ttl_s"),
        ("--export - --param gittins.xi_tokens=1k,2k", 2, "takes one value here"),
        ("--export - --param tlru.xi_tokens=1k", 2, "tlru is not replayed"),
        ("--export - --policy tlru --capacity-blocks 8k", 2, "tlru has no classes to choose"),
        ("--export - --policy tlru --deployment x.toml", 2, "tlru has no classes to choose"),
        ("--export - --capacity-blocks 9 --deployment x.toml", 2, "both state the capacity"),
        ("--export - --deployment x.toml", 3, "x.toml: No such file"),
        ("--export - --json", 2, "two results for standard output; name a file for one"),
        ("--export - --html -", 2, "two results for standard output; name a file for one"),
        ("--export no/x.toml", 2, "make it first"),
        ("--export /proc/x.toml", 2, "/proc"),
    ),
    "simulate short": (
        (
            "--capacity-blocks 3 --fail-on lru.p59>1s",
            2,
            "no figure 'lru.p59' here; did you mean lru.p99?",
        ),
        ("--policy lru,tlur", 2, "--policy: unknown policy 'tlur'; did you mean tlru?"),
        (
            f"{_GPU} --engine sglang --capacity-model engine --compat libcachesim",
            2,
            "--capacity-model engine: an engine does not count as libcachesim",
        ),
        (
            f"{_GPU} --engine sglang:schedule_policy=random",
            2,
            "--engine: sglang with schedule_policy=random is not simulated; write sglang:schedule",
        ),
        (
            f"{_GPU} --engine sglang:hicache_ratio=0",
            2,
            "--engine: hicache_ratio=0 is no size of a host tier; write how many times",
        ),
        (
            f"{_GPU} --engine sglang:hicache_size=4",
            2,
            "hicache_size=4 is not simulated; write sglang; of SGLang schedule_policy, hicache_rat",
        ),
        (
            f"{_GPU} --engine sglang:hicache_ratio=2 --sample 0.5",
            2,
            "--engine: SGLang's host tier is simulated of a whole trace, with hits counted as it",
        ),
        (
            f"{_GPU} --engine vllm:schedule_policy=lpm",
            2,
            "--engine: vllm with schedule_policy=lpm is not simulated; write vllm",
        ),
        (
            f"{_GPU} --engine sglang --policy lru,wa",
            2,
            "--policy: SGLang has no policy wa; take lru, fifo, lfu, slru, tlru",
        ),
        (f"{_GPU} --engine sglang --policy belady", 2, "SGLang has no policy belady"),
        (f"{_GPU} --engine sglang --param tlru.guard=1", 2, "--param tlru.guard: SGLang's tlru"),
        (f"{_GPU} --engine sglang --param tlru.leaves=any", 2, "has no parameter leaves"),
        ("--policy soft-ttl", 2, "soft-ttl was removed; take trtllm-priority instead"),
        ("--policy lru,TTL", 2, "--policy: ttl needs ttl_s: "),
        ("--param tlru.xi_token=2", 2, "did you mean xi_tokens?"),
        ("--param tlru.xi_tokens=2s", 2, "--param tlru.xi_tokens: '2s' is not a number"),
        ("--param slru.protected_uses=2", 2, "add slru to --policy"),
        ("--param tlru", 2, "write for example tlru.xi_tokens=2000"),
        ("--param tlru.leaves=all", 2, "take leaf or any"),
        ("--param tlru.xi_percentile=95", 2, "p95"),
        ("--capacity 1GiB", 2, "--capacity: bytes need a model; name one with --model"),
        ("--kv-dtype fp8", 2, "--kv-dtype: needs a model"),
        ("--model nope", 2, "no model preset 'nope'"),
        ("--latency llama2-7b-a10", 2, "--latency: no latency profile"),
        ("--latency no/such.toml", 3, "no/such.toml: No such file"),
        ("--slo 200", 2, "200ms"),
        ("--rate-scale 0", 2, "--rate-scale: not above 0"),
        ("--points 0", 2, "--points"),
        ("--isolate users", 2, "'users' is not one of"),
        ("--on nowhere", 2, "'nowhere' is no Ray cluster"),
        ("--sample 0%", 2, "--sample"),
        ("--sample 5%", 2, "--sample 0.05: no error can be stated below 10%"),
        ("--sample 50% --policy lru,sieve", 2, "does not show what sieve does"),
        ("--sample 50% --compat libcachesim", 2, "a flat cache knows none"),
        ("--sample 50% --isolate conversation", 2, "leave out --isolate or --sample"),
        ("--sample 50% --latency trace", 2, "leave out --latency trace or --sample"),
        ("--compat libcachesim --warmup 20%", 2, "leave out --outputs and --warmup"),
        ("--max-num-seqs 4", 2, "--max-num-seqs: only an engine has it; add --capacity-model"),
        ("--max-num-batched-tokens 4", 2, "--max-num-batched-tokens: only an engine has it"),
        ("--capacity-model engine --policy lfu", 2, "an engine; take lru, thr"),
        ("--capacity-model engine --sample 50%", 2, "leave out --sample"),
        ("--capacity-model engine --outputs ignored", 2, "leave out --compat and --out"),
        (f"{_SWAPPED} --tier-mode exclusive", 2, "no such option: --tier-mode; see `kvscope sim"),
        (f"{_SWAPPED} --capacity-blocks 4", 2, "--tiers: tiers have capacities of their own"),
        (f"{_SWAPPED} --points 4", 2, "leave out --capacity"),
        (f"{_SWAPPED} --sample 50%", 2, "--tiers: part of the requests make another load"),
        (f"{_SWAPPED} --compat libcachesim", 2, "--tiers: an engine does not count as libcac"),
        (f"{_SWAPPED} --policy belady", 2, "cannot order the blocks of an engine; take lru"),
        ("--tiers hbm=0blocks,dram=4blocks", 2, "hbm: 0blocks holds not one block; take more"),
        ("--tiers hbm=4blocks,dram=4blocks", 2, "name a model with --model"),
        (f"{_SWAPPED},tape=1GiB", 2, "--tiers tape: nothing says what a read takes"),
        (f"{_SWAPPED}:policy=lru", 2, "--tiers dram: a tier has no option 'policy'; it has read"),
        (f"{_ON_FILES}:ttl=1m", 2, "--tiers ssd: a tier has no option 'ttl'; it has read, write"),
        ("--offload vllm@0.33", 2, "write for example --tiers hbm=40GiB,dram=128GiB, or take"),
        ("--tiers hbm=2blocks", 2, "--tiers: takes the GPU's pool and one tier below it, or two"),
        (f"{_ON_FILES},remote=1GiB", 2, "one tier below it, or two"),
        ("--tiers hbm=1GiB,dram=1GiB", 2, "--tiers hbm: bytes need a model"),
        (f"--offload cachegen {_SWAPPED}", 2, "'cachegen' is not modelled"),
        (f"--offload vllm@0.33:store_threshold=2 {_ON_FILES}", 2, "vLLM refuses store_threshold"),
        (f"--offload lmcache {_SWAPPED}", 2, "'lmcache' is not modelled; take vllm@0.32 or"),
        ("--recommendation no.toml", 3, "no.toml: No such file"),
        ("--recommendation short.jsonl", 3, "short.jsonl: not a TOML file"),
        ("--recommendation schema.toml", 3, "schema.toml: verdict: missing; `kvscope tune` and"),
        ("--gpu h10 --model llama3-8b", 2, "--gpu: no GPU 'h10'; did you mean h100"),
        ("--gpu l4", 2, "--model: the KV pool is unknown"),
        ("--gpu l4 --model llama3-70b", 2, "leaves no memory for KV blocks"),
        (f"{_GPU} --capacity-blocks 4", 2, "leave --capacity-blocks out"),
        (f"{_GPU} --tiers hbm=4blocks", 2, "name --model without --gpu, or take kvscope tune"),
        (f"{_GPU} --replicas 2", 2, "--replicas 2: one engine is replayed"),
        (f"{_GPU} --engine vllm@99", 2, "--engine: no engine 'vllm@99'"),
        (f"{_GPU} --policy lfu", 2, "lfu cannot order the blocks of an engine"),
        ("--gpu l4 --model llama3-8b --engine-log no.log", 3, "no.log: No such file"),
        ("--gpu l4 --model gemma3-4b --policy tlru", 2, "the blocks of a hybrid model"),
        (_RANKS, 2, "--dp 8: one engine is replayed; add --traffic replica"),
        ("--deployment no.toml", 3, "no.toml: No such file"),
        ("--fail-on p95>1s", 2, "--fail-on: needs one capacity, not 5; name one with --capacity"),
        ("--capacity-blocks 1,2 --fail-on p95>1s", 2, "needs one capacity, not 2"),
        ("--capacity-blocks 1 --points 2 --fail-on p95>1s", 2, "needs one capacity, not 3"),
        ("--capacity-blocks 4 --fail-on p95>1", 2, "--fail-on"),
        (
            "--capacity-blocks 1 --policy lru,wa --fail-on p95>1s",
            2,
            "2 policies are replayed; name",
        ),
        (
            "--capacity-blocks 1 --policy ttl --param ttl.ttl_s=1s,2s --fail-on ttl.p95>1s",
            2,
            "2 settings of ttl are replayed; take one value of each --param",
        ),
        ("--capacity-blocks 1 --policy lru --fail-on attainment<95%", 2, "needs an SLO; add --slo"),
        ("--capacity-blocks 1 --policy lru --fail-on lru.tel>1s", 2, "needs an SLO; add --slo"),
        ("--capacity-blocks 1 --policy lru --fail-on ttl.p95>1s", 2, "no figure 'ttl.p95' here"),
        (
            "--capacity-blocks 1 --policy lru,wa --fail-on xyz>1s",
            2,
            "queued-p50, queued-p90, queued-p95, queued-p99; of lru, wa as POLICY.NAME",
        ),
        (
            "--capacity-blocks 4 --policy lru --fail-on regression>5%",
            2,
            "needs a baseline; add --baseline",
        ),
        ("--baseline x.json", 2, "--baseline: nothing compares with it"),
    ),
    "simulate short --capacity-blocks 4 --policy lru --fail-on regression>5% --baseline": (
        ("no.json", 3, "no.json: No such file or directory"),
        ("other.json", 3, "of `kvscope tune`, not of `kvscope simulate`"),
        ("old.json", 3, "written by kvscope 0.1, which did not write figures"),
        ("short.jsonl", 3, "short.jsonl: not JSON: "),
        ("list.json", 3, "not a document of kvscope; write one with --json"),
        ("run:9", 3, "run:9: the store has no such run; `kvscope runs` lists"),
    ),
    "simulate short --recommendation no.toml": (
        ("--policy lru", 2, "--policy: the recommendation settles this"),
        ("--param tlru.xi_tokens=1", 2, "--param: the recommendation settles this"),
        ("--capacity-blocks 3", 2, "--capacity-blocks: the recommendation settles this"),
        ("--points 3", 2, "--points: the recommendation settles this"),
        ("--latency llama2-7b-a100", 2, "--latency: the recommendation settles this"),
        ("--slo 1s", 2, "--slo: the recommendation settles this"),
    ),
    "retention short": (("--kv-dtype fp8", 2, "--kv-dtype: needs a model"),),
    "tune short": (
        ("", 2, "--slo"),
        ("--slo 200", 2, "200ms"),
        ("--slo -1s", 2, "200ms"),
        ("--slo 0s", 2, "above zero"),
        ("--slo fast", 2, "200ms"),
    ),
    "tune short --slo 1s": (
        (
            f"{_GPU} --fail-on verdict=swich",
            2,
            "--fail-on verdict=swich: there is no verdict 'swich' here; did you mean switch?",
        ),
        (
            "--disaggregate 9GB/s",
            2,
            "needs simulated vLLMs; name the deployment: --gpu and --model",
        ),
        (
            f"{_GPU} --engine sglang --autoscale 1..3@1",
            2,
            "leave it out, or take --engine vllm@0.33",
        ),
        (f"{_GPU} --dp 2 --autoscale 1..3@1", 2, "the replicas are the ranks of one engine"),
        ("--percentile 101", 2, "p95"),
        ("--percentile p101", 2, "p95"),
        ("--percentile p100", 2, "p95"),
        ("--max-violations 0%", 2, "5%"),
        ("--max-violations 101%", 2, "5%"),
        ("--max-violations 5% --percentile p95", 2, "leave out"),
        ("--model lama3-8b", 2, "did you mean"),
        ("--latency llama2-7b-a10", 2, "did you mean"),
        ("--policy tlruu", 2, "did you mean"),
        ("--policy belady", 2, "oracles are always shown"),
        ("--param tlru.xi=3", 2, "xi"),
        ("--param etlru.ttl_s=3s", 2, "add etlru to --policy"),
        ("--capacity-blocks 0", 2, "2000"),
        ("--capacity-blocks 9,10", 2, "--capacity-blocks: one cache has one capacity"),
        ("--capacity 16", 2, "16GiB"),
        ("--capacity 16GiB --capacity-blocks 5 --model vicuna-7b", 2, "leave out"),
        ("--capacity-range 5GiB", 2, "5GiB..80GiB"),
        ("--capacity-range 80GiB..5GiB", 2, "5GiB..80GiB"),
        ("--warmup 50% --judge 60%", 2, "20%, 25% and 25%"),
        ("--warmup 90%", 2, "20%, 25% and 25%"),
        ("--judge 0%", 2, "20%, 25% and 25%"),
        ("--validation 0%", 2, "20%, 25% and 25%"),
        ("--judge 140%", 2, "5%"),
        ("--view idle", 2, "queued"),
        ("--rate-scale 0", 2, "write for example 2"),
        ("--max-p50-regression -1%", 2, "5%"),
        ("--min-throughput 140%", 2, "5%"),
        ("--tpot-slo 50ms", 2, "name the deployment"),
        ("--gpu h10", 2, "h100"),
        ("--replicas 2", 2, "--model: the KV pool is unknown; name --gpu and --model"),
        (f"{_GPU} --capacity-blocks 5", 2, "leave it out"),
        (f"{_GPU} --view unloaded", 2, "leave it out"),
        (f"{_GPU} --outputs ignored", 2, "leave it out"),
        (f"{_GPU} --policy lfu", 2, "--policy: lfu cannot order the blocks of an engine"),
        (f"{_GPU} --engine sglang --policy wa", 2, "--policy: SGLang has no policy wa; take"),
        (f"{_GPU} --engine sglang --param tlru.guard=1", 2, "has no parameter guard; leave it"),
        (f"{_HYBRID} --policy tlru", 2, "tlru has no order for the blocks of hybrid models"),
        (
            "--num-gpu-blocks 9000 --latency llama2-7b-a100 --policy lru-retention",
            2,
            "lru-retention is for the blocks of hybrid models",
        ),
        ("--router session", 2, "--router: one cache has no router; add --fleet"),
        ("--tier-size 1GiB", 2, "--tier-size: a tier alone has it"),
        ("--compare-tiers", 2, "needs an engine with a pool"),
        ("--fail-on x>1", 2, "--fail-on"),
        ("--output no/such/folder/r.toml", 2, "make it first"),
        ("--output .", 2, "name a file in it"),
        ("--output /proc/r.toml", 2, "/proc"),
    ),
    _TIERS: (
        ("--warmup 90%", 2, "20%, 25% and 25%"),
        ("--tier-size tape:1GiB", 2, "'tape:1GiB' is no CPU memory"),
        ("--tier-size 64GiB,ssd:1TiB", 2, "'ssd:1TiB' is no CPU memory, with an SSD below or"),
        ("--tier-size ssd:1TiB+64GiB", 2, "is no CPU memory"),
        (
            "--tier-size 1GiB+shared:1TiB",
            2,
            "a shared pool needs 2 replicas or more; say how",
        ),
        (
            "--tier-size 4GiB+ssd:1TiB --offload vllm@0.33:store_threshold=2",
            2,
            "vLLM refuses store_threshold with a tier below the CPU's",
        ),
        ("--offload cachegen", 2, "'cachegen' is not modelled"),
        ("--ssd-writes-per-day 0", 2, "is not a number of drive writes above 0"),
        ("--dram-price -1", 2, "is not a price above 0"),
        (
            "--engine sglang",
            2,
            "--compare-tiers: tiers below sglang@0.5 are not simulated; leave it out",
        ),
    ),
    f"tune short --slo 1s --fleet {_GPU}": (
        ("--router min-ttft", 2, "--router: min-ttft is a reference"),
        ("--router mooncake", 2, "--router: mooncake"),
        ("--router sglang@9", 2, "--router"),
        ("--param dynamo@1.6.nothing=1", 2, "nothing"),
        ("--policy belady", 2, "belady is an oracle"),
        ("--traffic replica", 2, "--traffic: a fleet needs the traffic of all replicas"),
    ),
    f"tune short --slo 1s {_RANKS}": (
        ("--fleet", 2, "--fleet: not compared for the ranks of one engine (--dp)"),
        ("--also 8xh100", 2, "--also: not compared for the ranks of one engine (--dp)"),
        ("--compare-tiers", 2, "ranks of one engine (--dp), but by kvscope fleet; leave it out"),
    ),
    "tune short --slo 1s --fleet": (
        ("--capacity-blocks 9", 2, "--fleet: replicas need a deployment; name it: --gpu and"),
    ),
    f"tune short --slo 250ms --compare-tiers {_HYBRID}": (
        ("--engine sglang", 2, "are not simulated; "),
        ("--policy tlru", 2, "tlru has no order for the blocks of hybrid models"),
        (
            "--tier-size dram:64GiB+ssd:1TiB",
            2,
            "are simulated for models of full attention only; leave out the tier below it",
        ),
    ),
    "fleet short --slo 1s": (
        (f"{_RANKS} --replicas 4", 2, "--replicas: the replicas are the 8 ranks"),
        ("", 2, "how much a replica caches is not stated; name it, or --capacity with --model"),
        ("--capacity 1GiB", 2, "bytes need a model"),
        ("--gpu l4 --model llama3-8b --traffic replica", 2, "a fleet needs the traffic of all"),
        (f"{_GPU} --engine sglang --time-model engine --closed-loop", 2, "has an open loop; leave"),
        (
            f"{_GPU} --rate-scale 2 --closed-loop",
            2,
            "follow think times; leave --closed-loop out",
        ),
        (f"{_GPU} --rate-scale 0", 2, "--rate-scale: not above 0: 0"),
        (f"{_GPU} --engine sglang --time-model engine --policy wa", 2, "SGLang has no policy wa"),
        ("--gpu l4 --model gemma3-4b --policy tlru", 2, "not replayed on fleets of hybrid models"),
        ("--gpu l4 --model gemma3-4b --disaggregate 9GB/s", 2, "not simulated for hybrid models"),
        (f"{_GPU} --dp 2 --disaggregate 9GB/s", 2, "the replicas are the ranks of one engine"),
    ),
    "fleet short --slo 1s --capacity-blocks 9 --tier-size 8GiB": (
        ("--model llama3-8b", 2, "below vLLM's scheduler; take --time-model engine"),
        ("--time-model engine", 2, "needs vLLM and a model; name --model, and no other engine"),
    ),
    "fleet short --slo 1s --capacity-blocks 9": (
        ("--router roundrobin", 2, "unknown router 'roundrobin'; did you mean round-robin?"),
        ("--router dynamo@9", 2, "unknown router 'dynamo@9'; take dynamo@1.6"),
        ("--replicas 4..2", 2, "'4..2' is no range; write for example 1..16"),
        ("--router session --param random.x=1", 2, "random is not replayed; add random to"),
        ("--router dynamo@1.6 --param dynamo@1.6.heat=1", 2, "has no parameter 'heat'; it has"),
        ("--router mooncake --time-model engine", 2, "copies prefixes between replicas"),
        ("--policy belady", 2, "belady is an oracle, which no engine can run"),
        ("--policy ttl", 2, "--policy: ttl needs ttl_s"),
        ("--tier-size 1GiB+tape:1GiB", 2, "'1GiB+tape:1GiB' is no CPU memory"),
        ("--autoscale 2..8", 2, "'2..8' is no range of replicas with a rate for each; write for"),
        ("--autoscale 8..2@1", 2, "'8..2' is no range"),
        ("--autoscale 3..3@1", 2, "'3..3@1' is one number of replicas; leave it out"),
        ("--autoscale 2..8@0", 2, "'0' is not a rate above 0"),
        ("--autoscale 2..8@1:ready=soon", 2, "'soon'"),
        ("--autoscale 2..8@1", 2, "--autoscale: needs simulated vLLMs; take --time-model engine"),
        (
            "--autoscale 2..8@1 --time-model engine --closed-loop",
            2,
            "not simulated beside --closed-loop; leave --closed-loop out",
        ),
        (
            "--autoscale 2..8@1 --time-model engine --router dynamo --param dynamo.event_lag_s=1",
            2,
            "not simulated beside event_lag_s; leave event_lag_s out",
        ),
        ("--disaggregate 50Gbit/s", 2, "'50Gbit/s'"),
        ("--disaggregate 50GB/s", 2, "--disaggregate: needs simulated vLLMs; take --time-model en"),
        ("--disaggregate 50GB/s --time-model engine", 2, "needs the size of the KV; name --model"),
        ("--tier-size 1GiB+ssd:1GiB:evict=lru", 2, "is no CPU memory, with an SSD"),
        ("--tier-size 1GiB+shared:1GiB:speed=3", 2, "a shared pool has no option 'speed'; it has"),
        ("--tier-size 1GiB+shared:1GiB:evict", 2, "'evict' is no option; write for example"),
        ("--tier-size 1GiB+shared:1GiB:evict=arc", 2, "'arc' is no eviction of it; take none"),
        ("--tier-size 1GiB+shared:1GiB:bandwidth=3", 2, "'3' is not a bandwidth above 0"),
        ("--tier-size 1GiB+shared:x", 2, "'x' is not a size"),
        ("--policy lfu --time-model engine", 2, "--policy: lfu cannot order the blocks of an"),
        ("--capacity 1GiB", 2, "both state the capacity"),
        ("--warmup 100%", 2, "--warmup: not below 100%"),
        ("--fail-on x>3", 2, "--fail-on"),
    ),
    "validate short": (
        ("", 2, "--url, --model: name one of them"),
        ("--url http://x --model y", 2, "--url, --model: name one of them"),
        ("--url nonsense", 2, "--url: 'nonsense' is no address of a server"),
        ("--url http://x --sequential --in-flight 4", 2, "contradict each other"),
        ("--url http://x --sequential --rate-scale 2", 2, "needs the recorded times"),
        ("--url http://x --rate-scale 0", 2, "--rate-scale: not above 0"),
        ("--url http://x --until 0", 2, "--until"),
        ("--url http://x --share 0%", 2, "--share"),
        ("--url http://x --tp 2", 2, "a running server has its own"),
        ("--model x --latency nope", 2, "--latency: no latency profile 'nope'"),
        ("--model x --deployment no.toml", 3, "no.toml: No such file"),
        ("--model x --recommendation no.toml", 3, "no.toml: No such file"),
        ("--model x --replay recommendation", 3, "recommendation.toml: no such file"),
        ("--model x", 2, "--capacity-blocks: the size of the cache is unknown"),
        (
            "--model x --capacity-blocks 9 --python nope",
            2,
            "--python: 'nope' is no Python interpreter",
        ),
        ("--model x --server-log no/x.log", 2, "make it first"),
        ("--url http://x --fail-on x>3", 2, "--fail-on"),
    ),
    "calibrate": (
        ("", 2, "--url, --model: name one of them"),
        ("--url http://x --model y", 2, "--url, --model: name one of them"),
        ("--url http://x --backend torch", 2, "starts no server"),
        ("--url nonsense", 2, "--url: 'nonsense' is no address of a server"),
        ("--url http://x --max-tokens 3", 2, "prompts of 3 tokens are too short"),
        ("--model no/such --backend torch", 2, "--model: no folder 'no/such'"),
        ("--model x --output no/x.toml", 2, "make it first"),
        ("--model x --output /proc/x.toml", 2, "/proc"),
    ),
    "diff": (
        ("run:1 a.toml", 2, "run:1 is one of runs, "),
        ("run:1 run:2", 3, "run:1: the store has no such run"),
        ("a.toml b.toml", 3, "a.toml: "),
        ("short here", 3, "here: neither a file nor a stored trace"),
        ("nothing short", 3, "nothing: neither a file nor a stored trace"),
        ("short short --kv-dtype fp8", 2, "--kv-dtype: needs a model"),
        ("short short --hbm 3GiB", 2, "--hbm: needs a model"),
    ),
    "watch": (
        ("", 2, "there is nothing to watch; name a recording"),
        ("x --port 0", 2, "--port"),
        ("x --port 99999", 2, "'99999' is too large; write at most 65535"),
        ("x --capacity-blocks 4 --token a", 2, "--token: too short"),
        ("x", 2, "needs a capacity; add --capacity-blocks, --capacity with --model, or --recomm"),
        ("x --capacity 1GiB", 2, "bytes need a model"),
        ("x --capacity 1GiB --capacity-blocks 3", 2, "contradict each other"),
        ("no/file --capacity-blocks 4", 3, "no/file: no such file; name"),
        ("x --recommendation no.toml", 3, "no.toml: "),
    ),
    "runs": (
        ("short --policy bellady", 2, "unknown policy 'bellady'"),
        ("short --kv-dtype fp8", 2, "--kv-dtype: needs a model"),
        ("remove short", 2, "not clear what to remove"),
        ("remove short --reports --all", 2, "not clear what to remove"),
    ),
    "export short": (
        ("--to nope -o -", 2, "--to: unknown export format 'nope'"),
        ("--to parquet -o -", 2, "--output: parquet is binary"),
        ("--to bailian -o no/x", 2, "make it first"),
        ("--to bailian -o /proc/x", 2, "/proc"),
    ),
    "ingest short.jsonl": (
        ("--memory 8GiB", 2, "--memory: applies to a dataset; add --into DIR"),
        ("--session-arrivals x", 2, "'x' is not an arrival process"),
        ("--max-bad 200%", 2, "--max-bad"),
        ("--into set --on nowhere", 2, "'nowhere' is no Ray cluster"),
    ),
    "": (
        ("traces --db none.duckdb", 3, "none.duckdb: no such store"),
        ("synth nope", 2, "no profile is called 'nope'"),
        ("synth to-c -n 0", 2, "--requests"),
        ("synth to-c -o /proc/x", 2, "/proc"),
        ("hash no.log --tokenizer no -o /proc/x", 2, "/proc"),
        ("hash no.log --tokenizer no -o x --salt-file no/salt", 2, "make it first"),
        ("hash short.jsonl --tokenizer no -o short.jsonl", 2, "--output short.jsonl: the file is"),
        ("hash no.log --tokenizer no -o x --salt-file x", 2, "the file is that of --output, too"),
        ("record -o x", 2, "KVSCOPE_RECORD"),
        ("doctor --save-to /proc/x", 2, "/proc"),
        ("deployment", 2, "no deployment"),
        ("deployment --gpu h2oo", 2, "no GPU 'h2oo'"),
        ("deployment --gpu h100 --model llama3-8b --gpu-hour 0", 2, "'0' is not a price above 0"),
        (f"deployment {_RANKS} --replicas 2", 2, "2 engines of 8 ranks each: one is simulated"),
        (f"deployment {_RANKS} --engine sglang", 2, "--dp: data-parallel attention of sglang is"),
        ("deployment create --tp 4", 2, "error: "),
        ("deployment create --gpu l4 --model llama3-8b -o /proc/x.toml", 2, "/proc"),
        ("deployment check no.toml", 3, "no.toml: No such file"),
    ),
}

FACTS: Rows = {
    "analyze short": (
        ("--capacity 1KiB --model vicuna-7b", 2, "--capacity: holds not one block"),
        ("--from 20h", 2, "--from, --until: no request arrives then"),
        (f"{_GPU} --latency trace", 3, "short: contains no TTFTs"),
        ("--name x", 2, "--name: 'short' is a stored trace, read already"),
    ),
    "explain short": (
        ("--capacity 1KiB --model vicuna-7b", 2, "--capacity: holds not one block"),
        ("--request 100000", 2, "the trace has 500 requests, and none with the id '100000'"),
        ("--latency trace", 3, "short: contains no TTFTs"),
    ),
    "fit": (
        ("short --window 10h", 2, "--window: longer than the trace"),
        ("lengths --export -", 3, "take a trace with block hashes"),
    ),
    "simulate": (
        ("short --capacity 1KiB --model vicuna-7b", 2, "a block of vicuna-7b takes 8 MiB"),
        ("short --latency trace", 3, "short: contains no TTFTs"),
        (
            "short --tiers hbm=1GiB,dram=1B --model llama3-8b",
            2,
            "1B holds not one block; a block takes",
        ),
        (
            "short --offload vllm@0.33 --tiers hbm=1GiB,dram=1GiB,ssd=1GiB --model gemma3-4b",
            2,
            "are simulated for models of full attention only",
        ),
        ("strangers --isolate user", 3, "--isolate user: the trace names no users"),
        ("short --sample 50%", 2, "--sample: 'short' is no dataset, and is replayed as a whole"),
        ("lengths", 3, "has only lengths"),
    ),
    "retention": (
        ("sessions", 3, "no common clock"),
        ("lengths", 3, "has only lengths"),
    ),
    "tune --slo 1s": (
        ("short --percentile p99.9", 3, "for p99.9 each window needs 5,000 requests"),
        ("short --max-violations 0.1%", 3, "for p99.9 each window needs 5,000 requests"),
        (f"strangers {_GPU} --engine sglang", 3, "9 requests are too few for a training, a"),
        ("short --capacity 1KiB --model vicuna-7b", 2, "--capacity: holds not one block"),
        ("short --latency trace", 3, "short: contains no TTFTs"),
        (
            "untimed --view queued",
            3,
            "no arrival times, so queues cannot be simulated; take --view",
        ),
        (f"untimed {_GPU}", 3, "take one with timestamps, or --session-arrivals"),
        ("lengths", 3, "has only lengths"),
        (f"strangers --compare-tiers {_GPU}", 3, "9 requests are too few"),
        (f"untimed --compare-tiers {_GPU}", 3, "take one with timestamps, or --session-arrivals"),
        (f"strangers --fleet {_GPU}", 3, "9 requests are too few"),
        (
            f"short --compare-tiers {_HYBRID} {_CHUNKS}",
            2,
            "vLLM refuses 512 with a CPU tier whose chunks have 48 tokens; take a multiple of 48",
        ),
        (f"untimed --fleet {_GPU}", 3, "take one with timestamps, or --session-arrivals"),
    ),
    _TIERS: (
        ("--tier-size 1KiB", 2, "holds not one chunk of vllm@0.33"),
        ("--tier-size 4GiB+ssd:1KiB", 2, "holds not one chunk of vllm@0.33"),
        ("--percentile p99.9", 3, "for p99.9 each window needs 5,000 requests"),
    ),
    "fleet --slo 1s --capacity-blocks 3": (
        ("short --replicas 3000", 2, "3000 replicas for 500 requests; take fewer replicas"),
        ("short --latency trace", 3, "short: contains no TTFTs"),
        ("strangers --replicas 1 --closed-loop", 3, "no request continues another"),
        (
            "strangers --replicas 1 --router session",
            2,
            "session needs sessions, and no two requests of 'strangers' share one; leave it",
        ),
        ("untimed", 3, "take one with timestamps, or --session-arrivals"),
        ("lengths", 3, "has only lengths"),
    ),
    "export lengths --to oracleGeneral": (("-o x.bin", 3, "the trace has no block hashes"),),
    "ingest": (("short.jsonl --db no/k.duckdb", 3, "no/k.duckdb: its folder does not exist"),),
    "runs": (
        ("nope", 3, "nope: neither a file nor a stored trace"),
        ("--db none.duckdb", 3, "none.duckdb: holds no traces; give a trace file"),
    ),
}


EVERYWHERE = (
    ("--section nope", 2, "there is no section 'nope'"),
    ("--full --section nope", 2, "there is no section 'nope'"),
    ("--html no/x.html", 2, "there is no folder 'no'; make it first"),
    ("--html .", 2, "name a file in it"),
    ("--html /proc/x.html", 2, "/proc"),
    ("--html - --json", 2, "two results for standard output; name a file for one"),
    ("--nope", 2, "no such option: --nope"),
)
USE_CASES = (
    *("analyze short", "explain short", "fit short", "retention short", "simulate short"),
    *("tune short --slo 1s", _TIERS, "fleet short --slo 1s --capacity-blocks 9"),
    *("validate short --model x --capacity-blocks 9", "diff short short"),
)
OF_USE_CASES: Rows = dict.fromkeys(USE_CASES, EVERYWHERE)
"""What all use cases refuse alike."""


def commands(rows: Rows) -> list[Any]:
    """Return a parameter for each row: the command line, the exit code and the text."""
    return [
        pytest.param(line, code, text, id=line)
        for start, of_start in rows.items()
        for options, code, text in of_start
        for line in [f"{start} {options}".strip()]
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a store of traces, each of which lacks something.

    It stays open to be read: to open it anew takes longer than to refuse a mistake, and to open it
    for writing fails.
    """
    folder = tmp_path_factory.mktemp("mistakes")
    write_short(folder)
    first = {"input_length": 512, "output_length": 9}
    rows = {
        "strangers": [{"timestamp": 1000 * at, **first, "hash_ids": [at]} for at in range(9)],
        "untimed": [{"timestamp": 0, **first, "hash_ids": [at % 50]} for at in range(500)],
        "sessions": [
            {
                "id": name,
                "block_size": 4,
                "hash_id_scope": "local",
                "requests": [
                    {"t": 0, "type": "n", "model": "m", "in": 8, "out": 1, "hash_ids": [1, 2]}
                ],
            }
            for name in "ab"
        ],
    }
    (folder / "other.json").write_text('{"kvscope": "1", "command": "tune"}')
    (folder / "old.json").write_text('{"kvscope": "0.1", "command": "simulate"}')
    (folder / "list.json").write_text("[]")
    (folder / "schema.toml").write_text("schema = 1\n")
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    times = (f"2023-11-16 18:17:{at:02}.9799600,{100 + at},10" for at in range(60))
    (folder / "lengths.csv").write_text(
        "\n".join(chain(["TIMESTAMP,ContextTokens,GeneratedTokens"], times))
    )
    files = [str(folder / f"{name}.jsonl") for name in ("short", *rows)]
    store = str(folder / "kvscope.duckdb")
    assert run(["ingest", *files, str(folder / "lengths.csv"), "--db", store]) == 0
    with open_store(store, read_only=True):
        yield folder


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Forbid kernels, once the folder is made: an ingest runs some."""
    monkeypatch.setattr(Kernel, "__call__", _forbidden("a kernel is run"))
    monkeypatch.setattr(Kernel, "compiled", _forbidden("a kernel is loaded"))
    monkeypatch.chdir(folder)


@pytest.fixture
def _without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces.TraceSource, "load", _forbidden("a trace is read"))
    monkeypatch.setattr(traces, "ingest_file", _forbidden("a trace is read"))


def _forbidden(what: str) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError(what)

    return fail


@pytest.mark.usefixtures("_without_reading")
@pytest.mark.parametrize(
    ("line", "code", "text"),
    commands(OPTIONS) + commands(OF_USE_CASES),
)
def test_what_options_say_comes_before_a_trace_is_read(
    capsys: Streams, line: str, code: int, text: str
) -> None:
    """Also what follows from several of them, and from files that they name."""
    check(capsys, line, code, text)


@pytest.mark.parametrize(("line", "code", "text"), commands(FACTS))
def test_what_a_trace_says_comes_before_a_kernel_is_loaded(
    capsys: Streams, line: str, code: int, text: str
) -> None:
    """How many requests it has, which blocks, and what it does not know of them."""
    check(capsys, line, code, text)


def check(capsys: Streams, line: str, code: int, text: str) -> None:
    """Check that a command ends with the code and one line of error, and writes nothing."""
    before = sorted(Path.cwd().iterdir())
    ended = run(shlex.split(line))
    written = capsys.readouterr()
    errors = [each for each in written.err.splitlines() if not each.startswith("note: ")]
    assert (ended, written.out) == (code, ""), written.err
    (error,) = errors
    assert error.startswith("error: ")
    assert text in error
    assert sorted(Path.cwd().iterdir()) == before
