"""A browser for tests of pages, where there is one."""

from __future__ import annotations

import shutil

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def chromium() -> str | None:
    """The path of Debian's Chromium, or whatever goes by that name."""
    return shutil.which("chromium") or shutil.which("chromium-browser")
