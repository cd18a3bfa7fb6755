"""What API users run: how often, how fast, and what their prompts share."""

from dataclasses import dataclass

from kvscope.synth.counts import Counts, Fixed, Geometric, Lognormal


@dataclass(frozen=True)
class Program:
    """A kind of program: calls that share a system prompt, each fanned out over a document.

    Runs start at `run_rate_per_s` and make `calls` calls, exponential gaps of mean
    `call_gap_mean_s` apart. A call sends `fan_out` requests, lognormal gaps apart; they share the
    user's system prompt and the call's document, and add `own_tokens` each.
    """

    run_rate_per_s: float
    calls: Counts
    call_gap_mean_s: float
    system_tokens: Counts
    own_tokens: Counts
    output_tokens: Counts
    document_tokens: Counts = Fixed(0)
    fan_out: Counts = Fixed(1)
    fan_out_gap_median_s: float = 0.0
    fan_out_gap_sigma: float = 0.0


@dataclass(frozen=True)
class Dialogue:
    """The rare multi-turn user of an API: few of them, with very long contexts."""

    rate_per_s: float
    turns: Counts
    gap_mean_s: float
    first_tokens: Counts
    next_tokens: Counts
    output_tokens: Counts


BATCH = Program(
    run_rate_per_s=0.035,
    calls=Lognormal(60, 0.4),
    call_gap_mean_s=6.0,
    system_tokens=Lognormal(500, 0.5),
    own_tokens=Lognormal(565, 0.8),
    output_tokens=Lognormal(150, 0.8),
    document_tokens=Lognormal(620, 0.8),
    fan_out=Geometric(4),
    fan_out_gap_median_s=0.22,
    fan_out_gap_sigma=1.2,
)
"""Many questions about each of many documents, as fast as answers come."""

ASSISTANT = Program(
    run_rate_per_s=0.0055,
    calls=Lognormal(90, 0.4),
    call_gap_mean_s=28.0,
    system_tokens=Lognormal(5_800, 0.2),
    own_tokens=Lognormal(600, 0.8),
    output_tokens=Lognormal(250, 0.8),
)
"""A product with long instructions that passes on what its own users ask."""

SCRIPT = Program(
    run_rate_per_s=0.16,
    calls=Geometric(15),
    call_gap_mean_s=15.0,
    system_tokens=Lognormal(220, 0.5),
    own_tokens=Lognormal(830, 0.8),
    output_tokens=Lognormal(200, 0.8),
)
"""A small job with short instructions."""

TRIAL = Program(
    run_rate_per_s=1.05,
    calls=Geometric(1.1),
    call_gap_mean_s=10.0,
    system_tokens=Lognormal(60, 0.5),
    own_tokens=Lognormal(830, 0.8),
    output_tokens=Lognormal(200, 0.8),
)
"""Somebody tries the API once."""

PROGRAMS = (BATCH, ASSISTANT, SCRIPT, TRIAL)

DIALOGUE = Dialogue(
    rate_per_s=0.002,
    turns=Lognormal(3, 0.4),
    gap_mean_s=20.0,
    first_tokens=Lognormal(40_000, 0.3),
    next_tokens=Lognormal(300, 0.8),
    output_tokens=Lognormal(300, 0.8),
)
