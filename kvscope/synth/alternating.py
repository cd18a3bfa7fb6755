"""Traffic in which the conversations that continue and those that end swap roles over and over."""

from dataclasses import dataclass

from kvscope.synth.regime_change import RegimeChange


@dataclass(frozen=True)
class Alternating(RegimeChange):
    """The chats and documents of `RegimeChange`, which swap roles every `change_s`, not once.

    A policy that learns from the last minutes is right in a long phase and wrong in a short one. In
    phases 1, 3, 5, ... chats continue and documents end; in the others it is the other way round.
    Expected (ranges over eight seeds at 5,000 requests):

    | quantity | expected |
    |---|---|
    | requests with a next turn, odd phases: chats / documents | 77-81 % / 8-11 % |
    | the same, even phases | 8-11 % / 77-83 % |

    Source: no published traffic; a test for policies that learn and for guards that choose.
    """

    name = "alternating"

    change_s: float = 600.0

    def _swapped(self, time_s: float) -> bool:
        return time_s // self.change_s % 2 == 1
