"""Addresses as they may be shown and stored: without passwords, tokens and signatures."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*)://(?:[^\s/?#'\"]*@)?([^\s?'\"]*)(\?[^\s'\"]*)?")


def without_secrets(text: str) -> str:
    """Return `text` with the addresses in it as they may be shown: no user, no query.

    A question mark of s3:// is one of a pattern.
    """
    if "://" not in text:
        return text
    return _ADDRESS.sub(
        lambda at: f"{at[1]}://{at[2]}{(at[3] or '') if at[1].lower() == 's3' else ''}", text
    )
