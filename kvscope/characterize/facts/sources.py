"""Facts on whose touch reuse goes back to, and how unevenly it spreads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Blocks that one user reuses after another's touch; users ranked from 1 by what they reuse.

    `source_rank` and `source_user` are None for the touches of all users beyond the top ones.
    """

    source_rank: int | None
    reuser_rank: int
    source_user: int | None
    reuser_user: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Whose touch reuse goes back to: shares of the reused blocks, which add up to 1.

    `same_user_share` is the same user in another conversation. `other_share` is cross-user reuse
    where users are known.
    """

    reused_blocks: int
    same_conversation_share: float | None
    same_user_share: float | None
    other_share: float
    heat_map: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class TopShare:
    """The top `top_share` of blocks or users has `share` of the reuse or hits."""

    top_share: float
    share: float


@dataclass(frozen=True, slots=True)
class UserSkew:
    """How unevenly ideal hits and requests spread over users."""

    users: int
    hits: tuple[TopShare, ...]
    share_making_90_percent_of_hits: float | None
    share_making_90_percent_of_requests: float


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly reuse spreads over cacheable blocks, and over users where they are known."""

    cacheable_blocks: int
    reused_block_share: float
    reuse: tuple[TopShare, ...]
    reuse_from_top_10_percent: float | None
    users: UserSkew | None
