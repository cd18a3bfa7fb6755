"""`kvscope fit --export`: a policy with what was fitted for it, as an engine's plugin reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvscope.cli.diagnostics import note
from kvscope.cli.values import amount, parsed_by, target
from kvscope.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvscope.core.trace import Trace
    from kvscope.policies.base import Policy
    from kvscope.replay.policy_options import Variant
    from kvscope.replay.traffic import Traffic
    from kvscope.store.db import Store

EXPORTED = "gittins"

Export = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="PATH",
        parser=parsed_by(target),
        help="Write a policy with what was fitted for it, as kvscope's plugin for vLLM reads it.",
        show_default=False,
    ),
]
ExportPolicy = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="NAME", help="Which policy --export writes.", show_default=EXPORTED
    ),
]
ExportParams = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="POLICY.NAME=VALUE",
        help="A parameter of it, for example gittins.xi_tokens=2000.",
        show_default=False,
    ),
]
ExportCapacity = Annotated[
    int | None,
    typer.Option(
        "--capacity-blocks",
        metavar="N",
        parser=parsed_by(amount("blocks")),
        help="For a cache of so many of the trace's blocks: take the classes of gittins that serve"
        " it best, instead of the first ones; the threshold of tlru-learned, instead of 0.1.",
        show_default=False,
    ),
]


class Exporting:
    """What `--export` and its companions ask for; refused before any work where it is wrong."""

    def __init__(
        self, path: str | None, policy: str | None, params: list[str] | None, capacity: int | None
    ) -> None:
        self.path = path
        self._capacity = capacity
        if path is None:
            for name, value in (
                ("--policy", policy),
                ("--param", params),
                ("--capacity-blocks", capacity),
            ):
                if value is not None:
                    raise UsageError("is for --export", where=name, remedy="say what to write")
            return
        self._variant = _variant(policy or EXPORTED, params or [])
        from kvscope.learning.learners import learner_class

        learner = learner_class(self._variant.policy)
        if capacity is not None and (learner is None or learner.file_table is None):
            raise UsageError(
                f"{self._variant.policy.name} has no classes to choose, and no threshold",
                where="--capacity-blocks",
            )

    def write(self, store: Store, trace: Trace) -> None:
        """Write the file, if one is asked for."""
        if self.path is None:
            return
        from kvscope.app.traces import replayable
        from kvscope.core.hits import standard
        from kvscope.learning.learners import learner_class
        from kvscope.learning.offline.learners import fit_for
        from kvscope.replay.traffic import traffic
        from kvscope.tuning.file import write_policy

        of = traffic(replayable(store, trace), standard())
        policy = self._bound(of)
        fitted = fit_for(of, policy, self._capacity)
        learner = learner_class(type(policy))
        if fitted is not None and learner and learner.needs_fit and not fitted.requests:
            raise InputError(
                "too few requests whose outcome is known to learn from",
                where=trace.name,
                remedy="take a longer trace, or a shorter tlru-learned.horizon_s",
            )
        path = Path(self.path)
        write_policy(path, policy, fitted, trace=trace.name, block_size=trace.block_size)
        note(f"policy written to {path}")

    def _bound(self, of: Traffic) -> Policy:
        from kvscope.latency.file import load_profile
        from kvscope.latency.profile import DEFAULT_PROFILE
        from kvscope.replay.parameter_estimates import bind, estimate_parameters

        found = estimate_parameters(of, load_profile(DEFAULT_PROFILE), None, share=1.0)
        return bind(self._variant, found)


def _variant(name: str, params: list[str]) -> Variant:
    """The policy to write, one of those that the plugin runs, with one value a parameter."""
    from kvscope.replay.policy_options import parse_policies, parse_variants
    from kvscope.vllm_plugin.eviction_controller import lane_policy

    kinds = parse_policies(name, "--policy")
    if len(kinds) != 1:
        raise UsageError(f"{name!r} is more than one policy", where="--policy")
    lane_policy(kinds[0](), "--policy")
    variants = parse_variants(kinds, params)
    if len(variants) != 1:
        raise UsageError("takes one value here", where="--param", remedy="choose one")
    return variants[0]
