"""What a tuning took for granted, since nobody said it."""

from __future__ import annotations

from collections.abc import Mapping

from kvscope.core import units
from kvscope.report.simulation import value_in_words
from kvscope.report.tuning import Assumption, Tuned


def assumptions(tuned: Tuned, given: Mapping[str, object], policies: str) -> tuple[Assumption, ...]:
    """What of the options in `given` nobody gave, what was taken, and why.

    `policies` are those that compete where none is named.
    """
    tuning, profile = tuned.tuning, tuned.profile
    line = f"{units.format_duration(profile.base_s)} + {profile.per_token_s * 1e6:.3g} us a token"
    taken = (
        ("--latency", profile.name, f"a preset, {line}: measure yours with kvscope calibrate"),
        ("--model", tuned.model.name if tuned.model else "none", "the latency preset's"),
        (
            "--capacity",
            f"{tuning.capacity_blocks:,} blocks",
            "LRU gets half of the hits there are, in the part to choose on",
        ),
        ("--percentile", units.format_percentile(tuning.target.percentile), "the usual SLO"),
        (
            "--warmup, --judge",
            f"{tuning.split.warmup_requests:,} and {tuning.split.judged_requests:,} requests",
            "a warm cache, and enough requests on either side",
        ),
        ("--policies", policies, "they see no more than an engine does"),
    )
    names = [one for one in ("next_prompt_tokens", "turn_rate_per_s") if one in tuning.found]
    found = [
        Assumption(name, value_in_words(name, tuning.found[name].value), "of the part to choose on")
        for name in names
    ]
    return (*(Assumption(*one) for one in taken if given[one[0]] is None), *found)
