"""A decoder of plain torch with random weights: the cost of a first token without an engine.

    python torch_decoder.py CONFIG.json DEVICE

Writes a line that describes itself, then reads a JSON array [uncached, cached] a line and answers
{"ttft_s": ...}. The shape is that of a Hugging Face config.json: grouped-query attention, rotary
positions, RMS norm, a gated feed-forward part; the last token alone goes through the output layer,
as in an engine. Weights and cached keys and values are random: time does not depend on them. It
imports nothing of kvscope, so that it runs in any interpreter that has torch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Decoder:
    """The layers, and cached keys and values of the longest prefix measured so far."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        config = config | config.get("text_config", {})
        self.hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.size = config.get("head_dim") or self.hidden // self.heads
        inner = config.get("intermediate_size") or 4 * self.hidden
        stated = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
        self.dtype = DTYPES.get(stated.removeprefix("torch."), torch.bfloat16)
        self.device = torch.device(device)
        self.embedding = self._weight(config["vocab_size"], self.hidden)
        self.out = self._weight(config["vocab_size"], self.hidden)
        self.layers = [
            (
                self._weight((self.heads + 2 * self.kv_heads) * self.size, self.hidden),
                self._weight(self.hidden, self.heads * self.size),
                self._weight(2 * inner, self.hidden),
                self._weight(self.hidden, inner),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        self.cache: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _weight(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device) * 0.02

    def parameters(self) -> int:
        """Return the number of weights."""
        layers = [weight.numel() for layer in self.layers for weight in layer]
        return int(self.embedding.numel() + self.out.numel() + sum(layers))

    def prepare(self, cached: int) -> None:
        """Make keys and values of `cached` tokens, unless there are as many."""
        if not self.cache or self.cache[0][0].shape[2] < cached:
            shape = (1, self.kv_heads, cached, self.size)
            self.cache = [(self._weight(*shape), self._weight(*shape)) for _ in self.layers]

    def first_token(self, tokens: torch.Tensor, cached: int) -> int:
        """Return the likeliest token after `cached` tokens and these."""
        count = len(tokens)
        x = self.embedding[tokens]
        rotation = self._rotations(cached, count)
        mask = None
        if count > 1 and cached:
            ones = torch.ones(count, cached + count, dtype=torch.bool, device=self.device)
            mask = ones.tril_(diagonal=cached)
        for (qkv, out, up, down), cache in zip(self.layers, self.cache, strict=True):
            mixed = (rms_norm(x, (self.hidden,)) @ qkv.T).view(count, -1, self.size)
            mixed = mixed.transpose(0, 1).unsqueeze(0)
            q, k, v = mixed.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            q, k = _rotated(q, rotation), _rotated(k, rotation)
            if cached:
                k = torch.cat((cache[0][:, :, :cached], k), dim=2)
                v = torch.cat((cache[1][:, :, :cached], v), dim=2)
            attended = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None and count > 1,
                enable_gqa=self.kv_heads != self.heads,
            )
            x = x + attended.squeeze(0).transpose(0, 1).reshape(count, -1) @ out.T
            gate, value = (rms_norm(x, (self.hidden,)) @ up.T).chunk(2, dim=-1)
            x = x + (silu(gate) * value) @ down.T
        logits = rms_norm(x[-1:], (self.hidden,)) @ self.out.T
        token: int = logits.argmax().item()
        return token  # and the device has done its work

    def _rotations(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(start, start + count, device=self.device, dtype=torch.float32)
        steps = torch.arange(0, self.size, 2, device=self.device, dtype=torch.float32)
        angles = torch.outer(positions, 10_000.0 ** (-steps / self.size))
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _rotated(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def main(config_path: str, device: str) -> None:
    """Answer lines of standard input until it ends."""
    with open(config_path, encoding="utf-8") as file:  # noqa: PTH123  (needs no pathlib)
        decoder = Decoder(json.load(file), device)
    about = {"device": device, "dtype": str(decoder.dtype), "parameters": decoder.parameters()}
    print(json.dumps(about), flush=True)  # noqa: T201  (its protocol)
    for line in sys.stdin:
        uncached, cached = json.loads(line)
        tokens = torch.randint(100, 1000, (uncached,), device=decoder.device)
        decoder.prepare(cached)
        if device == "cuda":
            torch.cuda.synchronize()
        before = time.perf_counter()
        decoder.first_token(tokens, cached)
        print(json.dumps({"ttft_s": time.perf_counter() - before}), flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        with torch.inference_mode():
            main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001  (the caller reports it)
        failure = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(failure), flush=True)  # noqa: T201
