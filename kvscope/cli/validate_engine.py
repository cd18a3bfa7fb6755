"""The engine that `kvscope validate` replays on: its own vLLM, or a server that runs already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvscope.cli.diagnostics import note
from kvscope.cli.engine_options import CPU_BLOCK, GPU_BLOCK
from kvscope.core.errors import UsageError

if TYPE_CHECKING:
    from threading import Event

    from kvscope.core.trace import Prompts
    from kvscope.serving.client import Endpoint
    from kvscope.serving.interpreter import Interpreter
    from kvscope.validate.request_share import Part
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import Open


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed, but for the trace."""

    url: str | None
    model: str | None
    served_model: str | None
    python: str | None
    policies: str
    recommendation: str | None
    blocks: int | None
    block_size: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    flags: tuple[str, ...]
    outputs: str | None
    share: float
    minutes: float | None
    max_requests: int | None
    start_s: float
    timeout_s: float
    log_path: str | None
    seed: int


def engine_for(
    prompts: Prompts, wanted: Wanted, capacity_tokens: int | None, stop: Event
) -> tuple[EngineFacts, Open, Part, Interpreter | None]:
    """What is replayed on, how it is opened, what it is to serve, and what a vLLM of one's own has.

    Raises UsageError where the server does not tell its blocks or nobody says how many to give,
    EngineError where there is no vLLM or no server.
    """
    if wanted.url is not None:
        return (*_running(prompts, wanted), None)
    from kvscope.serving.interpreter import with_vllm
    from kvscope.serving.server import Launch, config_of
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import own_vllm

    model = str(wanted.model)
    has, config = with_vllm(wanted.python), config_of(model) or {}
    size = wanted.block_size or (GPU_BLOCK if has.device == "cuda" else CPU_BLOCK)
    blocks = _blocks(wanted, capacity_tokens, size)
    part = _part(prompts, wanted, _least(config.get("max_position_embeddings"), blocks * size))
    tokens = part.prompts.input_tokens + part.prompts.output_tokens
    launch = Launch(
        model,
        block_size=size,
        blocks=blocks,
        max_model_len=int(tokens.max()) + 1,
        max_num_seqs=wanted.max_num_seqs,
        max_num_batched_tokens=wanted.max_num_batched_tokens,
        forced_outputs=forced(wanted),
        flags=wanted.flags,
    )
    device = has.device_name or has.device
    note(f"vLLM {has.vllm} on {device}, {blocks:,} blocks of {size} tokens")
    opened = own_vllm(
        launch,
        has,
        start_s=wanted.start_s,
        timeout_s=wanted.timeout_s,
        log_path=wanted.log_path,
        stop=stop,
    )
    flags = tuple(launch.options(has))
    return EngineFacts("vLLM", has.vllm, device, model, blocks, size, flags), opened, part, has


def _running(prompts: Prompts, wanted: Wanted) -> tuple[EngineFacts, Open, Part]:
    from kvscope.serving.client import Endpoint
    from kvscope.validate.result import EngineFacts
    from kvscope.validate.validate import running_already

    endpoint = Endpoint(str(wanted.url), timeout_s=wanted.timeout_s)
    served = endpoint.model(wanted.served_model)
    size, blocks = _pool(endpoint, wanted)
    part = _part(prompts, wanted, _least(served.max_model_len, blocks * size))
    facts = EngineFacts("server", endpoint.version(), None, served.name, blocks, size)
    return facts, running_already(endpoint, served), part


def _pool(endpoint: Endpoint, wanted: Wanted) -> tuple[int, int]:
    """Block size and usable blocks: as typed, or as the server's metrics have them."""
    from kvscope.serving.client import block_pool

    told = block_pool(endpoint.metrics())
    size = wanted.block_size or (told and told.block_size)
    blocks = wanted.blocks or (told and told.usable_blocks)
    if not size or not blocks:
        raise UsageError(
            "the server does not tell its blocks",
            where="--blocks, --engine-block-size",
            remedy="say how many it has, and how large they are",
        )
    return size, blocks


def _blocks(wanted: Wanted, capacity_tokens: int | None, size: int) -> int:
    """Return the blocks vLLM gets: as typed, or as recommended, scaled as the trace is."""
    if wanted.blocks is not None:
        return wanted.blocks
    if capacity_tokens is None:
        raise UsageError(
            "how large is the cache?", where="--blocks", remedy="say it, or --recommendation"
        )
    blocks = max(1, round(capacity_tokens * wanted.share / size))
    if wanted.share < 1:
        note(f"the cache is scaled down as the trace is, to {blocks:,} blocks of {size} tokens")
    return blocks


def _least(told: object, tokens: int) -> int:
    return min(told - 1, tokens) if isinstance(told, int) else tokens


def _part(prompts: Prompts, wanted: Wanted, longest: int) -> Part:
    from kvscope.validate.request_share import part

    return part(
        prompts,
        share=wanted.share,
        seconds=None if wanted.minutes is None else 60 * wanted.minutes,
        most=wanted.max_requests,
        longest=longest,
        seed=wanted.seed,
    )


def forced(wanted: Wanted) -> bool:
    """Whether requests say what they are to be answered."""
    return (wanted.outputs or ("bounded" if wanted.url else "forced")) == "forced"
