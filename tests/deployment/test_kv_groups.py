"""Groups of a hybrid model's layers, as vLLM forms them."""

from __future__ import annotations

import pytest

from kvscope.deployment.architecture import LayerKinds
from kvscope.deployment.kv_groups import KvGroups, kv_groups
from kvscope.deployment.models import resolve_model


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("gpt-oss-20b", "sliding/16/128/12+full/16/0/12@0"),
        ("gemma3-4b", "+".join([*["sliding/16/1024/5"] * 5, "sliding/16/1024/4", "full/16/0/5@0"])),
        ("llama3-8b", None),
    ],
)
def test_groups_of_models(model: str, text: str | None) -> None:
    """Each group has as many layers as the rarer kind, the last of a kind fewer."""
    groups = resolve_model(model).kv_groups(16)
    assert (groups and groups.text) == text
    assert groups is None or KvGroups.parse(groups.text) == groups


def test_nearly_equal_kinds_are_not_split() -> None:
    """12 and 13 layers make two groups, not three."""
    groups = kv_groups(LayerKinds(13, 12, 0, 128, sliding_first=False, alike=True), 16)
    assert groups is not None
    assert groups.text == "full/16/0/13+sliding/16/128/12@0"


def test_unlike_layers_have_no_known_groups() -> None:
    """Linear layers, and layers with other heads."""
    assert kv_groups(LayerKinds(10, 0, 30), 16) is None
    assert kv_groups(LayerKinds(10, 30, 0, 512), 16) is None


@pytest.mark.parametrize(("tokens", "interval"), [(0, 0), (5, 16), (40, 32), (float("inf"), None)])
def test_intervals_are_rounded_to_what_vllm_takes(tokens: float, interval: int | None) -> None:
    """Multiples of all blocks, at least one; no limit keeps all windows."""
    groups = resolve_model("gpt-oss-20b").kv_groups(16)
    assert groups is not None
    assert groups.retaining(tokens).retention_tokens == interval
