"""Check that no page of the built site loads anything from a network.

python -m docs.site.offline build/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_REMOTE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_CSS_LOADS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
_LOADING = {"src", "srcset", "poster", "data", "background"}
_LINKS_THAT_LOAD_NOTHING = {"canonical", "alternate", "author", "license", "next", "prev", "me"}


class _Page(HTMLParser):
    """Collects the remote addresses that a browser would load with the page."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        loads = [value for name, value in values.items() if name in _LOADING]
        if tag == "link" and not set(values.get("rel", "").split()) & _LINKS_THAT_LOAD_NOTHING:
            loads.append(values.get("href", ""))
        self.loaded += [value for value in loads if _REMOTE.match(value)]
        self.loaded += _CSS_LOADS.findall(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.loaded += _CSS_LOADS.findall(data)


def external_loads(site: Path) -> Iterator[str]:
    """Yield `page: address` for each remote script, style, font, picture or frame of the site."""
    for path in sorted(site.rglob("*.html")):
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)}: {address}" for address in page.loaded)
    for path in sorted(site.rglob("*.css")):
        for address in _CSS_LOADS.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {address}"


def main() -> int:
    """Print every external load; return 1 if there is one, or no page at all."""
    site = Path(sys.argv[1])
    loads = list(external_loads(site))
    print("\n".join(loads), file=sys.stderr, end="\n" if loads else "")
    if not (site / "index.html").exists():
        print(f"{site}: no site", file=sys.stderr)
        return 1
    return 1 if loads else 0


if __name__ == "__main__":
    sys.exit(main())
