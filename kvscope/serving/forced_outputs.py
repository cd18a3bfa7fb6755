"""A logits processor for vLLM: a request that names its output tokens gets exactly those.

    --logits-processors kvscope.serving.forced_outputs:ForcedOutputs

and in a request `"vllm_xargs": {"kvscope_outputs": [17, 4, ...]}`. Made-up weights say nothing that
a trace's next turn could carry on; so they are told what to say. Runs inside the engine, and is
the one place here that imports vLLM.

Source: vLLM 0.32.0, vllm/v1/sample/logits_processor/__init__.py (AdapterLogitsProcessor).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from kvscope.serving.extras import OUTPUTS


class ForcedOutputs(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM is not there to check
    """Leaves one token possible at each place of a forced output."""

    def is_argmax_invariant(self) -> bool:
        """It changes which token is likeliest."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[..., Any] | None:
        """What forces the output of one request; None where it asks for nothing."""
        wanted = (params.extra_args or {}).get(OUTPUTS)
        if not wanted:
            return None

        def force(outputs: list[int], logits: Any) -> Any:
            if len(outputs) < len(wanted):
                logits.fill_(float("-inf"))
                logits[int(wanted[len(outputs)])] = 0.0
            return logits

        return force
