"""A deployment on one screen: its KV pool term by term, its latency, and notes on doubts."""

from __future__ import annotations

from kvscope.core.units import GIB, duration_in_words, format_size
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.pool import Term
from kvscope.latency.profile import TO_FIT
from kvscope.policies.lru import Lru
from kvscope.report.section import Section, Table, tabulate
from kvscope.report.words import count, counted, money
from kvscope.tuning.flags import EngineLaunch, flags

_PROMPTS = (1_000, 8_000, 32_000)
_RUNNING, _CONTEXT = 16, 2_000
_FROM = {"engine log": "from the engine's log", "metrics": "from the engine's metrics"}


def sections(deployment: ResolvedDeployment) -> list[Section]:
    """Return the deployment, its pool, its latency, and any notes."""
    parts = [_deployment(deployment), _pool(deployment), _latency(deployment)]
    notes = [*deployment.notes]
    if deployment.not_switchable:
        notes.insert(0, f"no engine flags: {deployment.not_switchable}")
    if notes:
        parts.append(Section.of("Notes", *(f"- {note}" for note in notes)))
    return parts


def _deployment(deployment: ResolvedDeployment) -> Section:
    traffic = "the whole fleet" if deployment.stated.traffic == "fleet" else "one replica"
    price, gpus = deployment.price_hour, counted(deployment.gpus, "GPU")
    gpus += " costs" if deployment.gpus == 1 else " cost"
    return Section.of(
        "Deployment",
        deployment.summary,
        f"The trace holds the traffic of {traffic}."
        f" Limits: {count(deployment.max_num_seqs)} running requests,"
        f" {count(deployment.max_num_batched_tokens)} tokens per step.",
        None if price is None else f"{gpus} {money(price)} an hour.",
        ranks_in_words(deployment) if deployment.dp > 1 else None,
    )


def ranks_in_words(deployment: ResolvedDeployment) -> str:
    """Return a sentence with the command that starts a deployment's data-parallel ranks."""
    options = flags(Lru(), EngineLaunch.of(deployment, None)).vllm
    return f"To start the ranks: vllm serve MODEL {options}"


def _pool(deployment: ResolvedDeployment) -> Section:
    pool = deployment.pool
    size = f"{count(pool.blocks)} blocks of {count(pool.block_size)} tokens"
    tokens = f"{count(pool.tokens)} tokens"
    if pool.layer_share > 1:  # compressed attention: a block holds an entry of many tokens
        size = counted(pool.blocks, "block")
        tokens = f"{count(pool.of_all_layers.tokens)} tokens, less for windows and states"
    each = "rank" if deployment.dp > 1 else "replica"
    if deployment.dp > 1:
        tokens += f" ({count(pool.tokens * deployment.replicas)} in all)"
    origin = _FROM.get(pool.origin, pool.origin)
    band = None
    if pool.low_blocks != pool.high_blocks:
        band = f"It may be {count(pool.low_blocks)} to {count(pool.high_blocks)} blocks."
    return Section.of(
        "KV pool",
        f"{size} per {each}: {tokens}, {origin}. vLLM's num_gpu_blocks would be"
        f" {count(pool.num_gpu_blocks)}."
        if pool.null_blocks
        else f"{size} per {each}: {tokens}, {origin}.",
        band,
        _terms(pool.terms) if pool.terms else None,
    )


def _terms(terms: tuple[Term, ...]) -> Table:
    rest = sum(term.bytes for term in terms)
    band, more = (sum(term.band_bytes for term in terms), sum(term.more_bytes for term in terms))
    rows = [*terms, Term("KV cache", rest, band, "the rest", more)]
    return tabulate(
        "",
        rows,
        {
            "each GPU": lambda term: term.name,
            "memory": lambda term: "-" * (term.bytes < 0) + format_size(abs(term.bytes)),
            "within": _within,
            "by": lambda term: term.rule,
        },
        words=("by",),
    )


def _within(term: Term) -> str:
    band = format_size(term.band_bytes) if term.band_bytes else ""
    less = (term.band_bytes + term.more_bytes) / GIB
    return f"-{less:.3g} +{band}" if term.more_bytes else band


def _latency(deployment: ResolvedDeployment) -> Section:
    profile = deployment.latency
    if profile == TO_FIT:
        return Section.of("Latency", "Fitted to the TTFTs in the trace, once a command reads one.")
    low, high = deployment.latency_low, deployment.latency_high
    banded = low != high

    def cells(seconds: float) -> tuple[str, ...]:
        ends = [seconds * low, seconds, seconds * high] if banded else [seconds]
        return tuple(duration_in_words(end) for end in ends)

    rows = [
        (f"TTFT of {count(tokens)} tokens", *cells(float(profile.ttft_s(tokens, 0))))
        for tokens in _PROMPTS
    ]
    if profile.decode_base_s is not None:
        step = profile.decode_base_s + _RUNNING * (
            profile.decode_request_s + _CONTEXT * profile.decode_context_token_s
        )
        rows.append((f"TPOT of {_RUNNING} requests with {count(_CONTEXT)} tokens", *cells(step)))
    columns = ("uncached, idle engine", *(("low", "best", "high") if banded else ("",)))
    return Section.of(
        "Latency",
        f"{deployment.latency_origin.capitalize()}: {profile.source}.",
        Table("", columns, tuple(rows)),
    )
