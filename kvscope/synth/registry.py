"""The profiles by name. A new one: a file with a frozen dataclass, and a line here."""

from difflib import get_close_matches

from kvscope.core.errors import UsageError
from kvscope.synth.agent import Agent
from kvscope.synth.base import Profile
from kvscope.synth.birth_death import BirthDeath
from kvscope.synth.regime_change import RegimeChange
from kvscope.synth.to_b import ToB
from kvscope.synth.to_c import ToC

PROFILES: dict[str, Profile] = {
    ToC.name: ToC(),
    ToB.name: ToB(),
    Agent.name: Agent(),
    BirthDeath.name: BirthDeath(),
    RegimeChange.name: RegimeChange(),
}


def by_name(name: str) -> Profile:
    """The profile called `name`, with its default parameters. UsageError if there is none."""
    if name in PROFILES:
        return PROFILES[name]
    near = get_close_matches(name, PROFILES, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PROFILES)}"
    raise UsageError(f"no profile is called {name!r}", remedy=remedy)
