"""What memory below the GPU costs, by `tier_prices.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

TierKind = Literal["dram", "ssd"]
Price = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
STATED = "stated"
"""The source of a price of your own."""
_GIB, _DAY_S = 2**30, 86_400.0


class TierPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of one kind of memory; its keys are described in `tier_prices.toml`."""

    gib_hour: Price
    source: str
    writes_per_day: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def hour(self, size_bytes: int, written_bytes_s: float = 0.0) -> float:
        """Return the price of so many bytes for an hour, written to at such a rate."""
        return size_bytes / _GIB * self.gib_hour * max(1.0, self.wear(size_bytes, written_bytes_s))

    def wear(self, size_bytes: int, written_bytes_s: float) -> float:
        """Return the writes as a multiple of those that the memory is rated for; 0 for any."""
        if self.writes_per_day is None or not size_bytes:
            return 0.0
        return written_bytes_s * _DAY_S / size_bytes / self.writes_per_day


class TierPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices known, and the date on which their sources were read."""

    schema: int
    currency: str
    date: str
    dram: TierPrice
    ssd: TierPrice


@cache
def tier_prices() -> TierPrices:
    """Return what `tier_prices.toml` says."""
    path = Path(__file__).with_name("tier_prices.toml")
    return msgspec.toml.decode(path.read_bytes(), type=TierPrices)
