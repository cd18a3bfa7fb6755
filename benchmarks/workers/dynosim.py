"""Replay a Mooncake trace on NVIDIA's simulator of engines and routers, without a GPU.

Arguments: TRACE REPLICAS BLOCKS ROUTER, with an interpreter that has ai-dynamo-runtime. Prints the
share of input tokens that hit, TTFT and the time between tokens; with --lone also the TTFT of each
request, by length. --lag makes KV events so many seconds late; --decode takes so many workers more,
which decode, and get KV of BYTES a token over links of GB_S: --decode WORKERS BYTES GB_S.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from typing import Any

BLOCK_TOKENS = 512


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace")
    parser.add_argument("replicas", type=int)
    parser.add_argument("blocks", type=int)
    parser.add_argument("router", choices=("kv_router", "round_robin"))
    parser.add_argument("--lone", action="store_true")
    parser.add_argument("--lag", type=float, default=0.0)
    parser.add_argument("--decode", nargs=3, type=float)
    options = parser.parse_args()
    os.environ["DYN_LOG"] = "error"
    output = os.dup(1)
    os.dup2(2, 1)  # logs of the runtime go to stderr
    runtime: Any = __import__("dynamo._core", fromlist=["_core"])
    engine = {"num_gpu_blocks": options.blocks, "block_size": BLOCK_TOKENS}
    engine["max_num_batched_tokens"] = 16384

    def arguments(**more: Any) -> Any:
        # There is no public way.
        return runtime._normalize_mocker_config({"engine": {**engine, **more}})  # noqa: SLF001

    workers = {"extra_engine_args": arguments(), "num_workers": options.replicas}
    if options.decode:
        count, token_bytes, bandwidth = options.decode
        link = {"kv_transfer_bytes_per_token": int(token_bytes), "kv_transfer_bandwidth": bandwidth}
        workers = {
            "prefill_engine_args": arguments(worker_type="prefill", **link),
            "decode_engine_args": arguments(worker_type="decode", **link),
            "num_prefill_workers": options.replicas,
            "num_decode_workers": int(count),
        }
    result = runtime.run_mocker_trace_replay(
        [options.trace],
        **workers,
        router_mode=options.router,
        router_config=runtime.KvRouterConfig() if options.router == "kv_router" else None,
        trace_block_size=BLOCK_TOKENS,
        trace_format="mooncake",
        capture_per_request=options.lone,
        kv_event_lag_ms=options.lag * 1e3 or None,
    )
    summary = result.summary
    document: dict[str, Any] = {
        "version": version("ai-dynamo-runtime"),
        "hit_share": summary["prefix_cache_reused_ratio"],
        "mean_ttft_s": summary["mean_ttft_ms"] / 1e3,
        "p95_ttft_s": summary["p95_ttft_ms"] / 1e3,
        "token_s": summary["mean_itl_ms"] / 1e3,
        "mean_tpot_s": summary["mean_tpot_ms"] / 1e3,
    }
    if options.lone:
        document["ttft_s"] = {
            request["input_length"]: request["ttft_ms"] / 1e3 for request in result.per_request
        }
    sys.stdout.flush()
    os.write(output, json.dumps(document).encode())


if __name__ == "__main__":
    main()
