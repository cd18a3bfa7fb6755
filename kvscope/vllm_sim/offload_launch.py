"""How an engine is started with a tier of memory below its pool."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OffloadLaunch:
    """Arguments and environment variables of a tier, beside all others of the engine.

    `engine` is a name for the reader, `server` the command that starts it. `needs` is what has to
    be installed too, empty for nothing.
    """

    engine: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    server: str = "vllm serve"

    @property
    def text(self) -> str:
        """The same as a line for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        started = [*variables, f"{self.server} …"] if variables else []
        needs = f" (with {self.needs})" if self.needs else ""
        return f"{self.engine}{needs}: {' '.join([*started, shlex.join(self.arguments)])}"
