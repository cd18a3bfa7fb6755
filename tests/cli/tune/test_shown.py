"""What `kvscope tune` says in the terminal and in its report."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.shell import Streams
from tests.cli.tune.asked import HERE, HOSTILE, told, write_trace
from tests.tuning.examples import in_turn


def test_the_report_is_self_contained_and_escaped(
    tmp_path: Path, options: tuple[str, ...], capsys: Streams
) -> None:
    """One file, nothing from the network, and no trace's name or type becomes markup."""
    name = "a<b>&'c"
    nasty = str(write_trace(tmp_path / f"{name}.jsonl", in_turn(), HOSTILE))
    told(capsys, nasty, *options, "--slo", "200ms", *HERE, "--html", "r.html")
    page = Path("r.html").read_text(encoding="utf-8")
    head = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "a&lt;b&gt;&amp;&#x27;c" in head
    assert name not in head
    assert HOSTILE not in page
    assert "<img" not in head
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", head)
    assert head.count('class="figure"') == 6
    assert "Recommendation: do now" in head


def test_what_was_assumed_is_said(trace: str, options: tuple[str, ...], capsys: Streams) -> None:
    """Without --latency: which preset, and what another speed of prefill would change."""
    asked = (trace, *options[:2], "--policy", "tlru", "--view", "unloaded", "--slo", "30ms")
    words = told(capsys, *asked)
    assert "--latency llama2-7b-a100" in words
    assert "With prefill half as long: " in words
    assert "With prefill twice as long: " in words
    assert "--capacity" in words
    given = told(capsys, trace, *options, "--slo", "200ms", *HERE)
    assert "With prefill" not in given
    assert "--latency" not in given
