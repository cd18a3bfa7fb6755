"""How an engine is started with a tier of memory below its pool."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec import Struct, field


class OffloadLaunch(Struct, frozen=True):
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
    def flags(self) -> str:
        """The same as words for a shell, behind the variables and the command if there are any."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        started = [*variables, f"{self.server} …"] if variables else []
        return " ".join([*started, shlex.join(self.arguments)])

    @property
    def text(self) -> str:
        """The flags with the engine's name, as a line for the reader."""
        needs = f" (with {self.needs})" if self.needs else ""
        return f"{self.engine}{needs}: {self.flags}"
