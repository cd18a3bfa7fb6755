"""A decoder of plain torch with random weights: what tokens cost without an engine.

    python torch_decoder.py CONFIG.json DEVICE

Writes a line that describes itself, then reads a JSON object a line: {"uncached": u, "cached": c}
is a prompt, answered by {"seconds": its TTFT}; {"batch": b, "context": c} is a step in which b
requests with c tokens before theirs get one token each, answered by {"seconds": of the step}.

The shape is that of a Hugging Face config.json: grouped-query attention, rotary positions, RMS
norm, a gated feed-forward part or experts (not shared ones); the last token alone goes through the
output layer, as in an engine. Weights and cached keys and values are random: time does not depend
on them. On CUDA a step of decoding is a captured graph, as in an engine. It imports nothing of
kvscope, so that it runs in any interpreter that has torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    del sys.path[0]  # this folder: torch imports the standard library's `profile`, not its own

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

REPEATED = 8
"""Steps of decoding that are timed together: one is too short for a clock."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Decoder:
    """A decoder with random weights in the shape of `config` (a config.json), and its KV cache."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        config = config | config.get("text_config", {})
        self.hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.size = config.get("head_dim") or self.hidden // self.heads
        self.experts = config.get("num_experts") or config.get("num_local_experts") or 0
        self.active_experts = config.get("num_experts_per_tok") or 1
        inner = config.get("intermediate_size") or 4 * self.hidden
        if self.experts:
            inner = config.get("moe_intermediate_size") or inner
        stated = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
        self.dtype = DTYPES.get(stated.removeprefix("torch."), torch.bfloat16)
        self.device = torch.device(device)
        self.embedding = self._weight(config["vocab_size"], self.hidden)
        self.out = self._weight(config["vocab_size"], self.hidden)
        experts = (self.experts,) if self.experts else ()
        self.layers = [
            (
                self._weight((self.heads + 2 * self.kv_heads) * self.size, self.hidden),
                self._weight(self.hidden, self.heads * self.size),
                self._weight(*experts, 2 * inner, self.hidden),
                self._weight(*experts, self.hidden, inner),
                self._weight(self.experts or 1, self.hidden),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        self.cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.rows: list[torch.Tensor] = []

    def _weight(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(std=0.02)

    def parameters(self) -> int:
        """Return the number of weights."""
        layers = [weight.numel() for layer in self.layers for weight in layer]
        return int(self.embedding.numel() + self.out.numel() + sum(layers))

    def free_tokens(self) -> int:
        """Return the tokens whose KV fits into free memory (less 6 GiB), on CPUs into 1 GiB."""
        token = 2 * len(self.layers) * self.kv_heads * self.size * self.embedding.element_size()
        free = 2**30 if self.device.type != "cuda" else torch.cuda.mem_get_info()[0] - 6 * 2**30
        tokens: int = max(int(free) // token, 0)
        return tokens

    def prepare(self, cached: int, batch: int = 1) -> None:
        """Make keys and values for `batch` requests of `cached` tokens, unless they exist."""
        held = self.cache[0][0].shape if self.cache else (0, 0, 0, 0)
        if held[0] != batch or held[2] < cached:
            self.cache = []  # before there are others: both may not fit
            shape = (batch, self.kv_heads, cached, self.size)
            self.cache = [(self._weight(*shape), self._weight(*shape)) for _ in self.layers]

    def first_token(self, tokens: torch.Tensor, cached: int) -> int:
        """Return the likeliest token after `cached` tokens and `tokens`."""
        count = len(tokens)
        x = self.embedding[tokens]
        rotation = self._rotations(cached, count)
        causal = causal_lower_right(count, cached + count) if count > 1 else None
        for (qkv, out, *feed_forward), cache in zip(self.layers, self.cache, strict=True):
            mixed = (rms_norm(x, (self.hidden,)) @ qkv.T).view(count, -1, self.size)
            mixed = mixed.transpose(0, 1).unsqueeze(0)
            q, k, v = mixed.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            q, k = _rotated(q, rotation), _rotated(k, rotation)
            if cached:
                k = torch.cat((cache[0][:, :, :cached], k), dim=2)
                v = torch.cat((cache[1][:, :, :cached], v), dim=2)
            attended = scaled_dot_product_attention(
                q, k, v, attn_mask=causal, enable_gqa=self.kv_heads != self.heads
            )
            x = x + attended.squeeze(0).transpose(0, 1).reshape(count, -1) @ out.T
            x = x + self._fed_forward(rms_norm(x, (self.hidden,)), *feed_forward)
        logits = rms_norm(x[-1:], (self.hidden,)) @ self.out.T
        token: int = logits.argmax().item()
        return token  # and the device has done its work

    def step(self, batch: int, context: int) -> Callable[[], object]:
        """Return a function that runs a step: a token each for `batch` requests of `context`."""
        self.prepare(context + 1, batch)
        tokens = torch.randint(100, 1000, (batch,), device=self.device)
        if self.device.type != "cuda":
            return lambda: self._next_tokens(tokens, context)
        for _ in range(2):  # before it is captured: libraries set themselves up
            self._next_tokens(tokens, context)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.rows = [self._next_tokens(tokens, context)]  # alive as long as the graph
        replay: Callable[[], object] = graph.replay
        return replay

    def _next_tokens(self, tokens: torch.Tensor, context: int) -> torch.Tensor:
        batch, groups = len(tokens), self.heads // self.kv_heads
        x = self.embedding[tokens]
        rotation = self._rotations(context, 1)
        for (qkv, out, *feed_forward), (keys, values) in zip(self.layers, self.cache, strict=True):
            mixed = (rms_norm(x, (self.hidden,)) @ qkv.T).view(batch, -1, 1, self.size)
            q, k, v = mixed.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            keys[:, :, context : context + 1] = _rotated(k, rotation)
            values[:, :, context : context + 1] = v
            # Heads that share a KV head are rows of one query: its KV is read once.
            rows = _rotated(q, rotation).reshape(batch, self.kv_heads, groups, self.size)
            attended = scaled_dot_product_attention(
                rows, keys[:, :, : context + 1], values[:, :, : context + 1]
            )
            x = x + attended.reshape(batch, -1) @ out.T
            x = x + self._fed_forward(rms_norm(x, (self.hidden,)), *feed_forward)
        return (rms_norm(x, (self.hidden,)) @ self.out.T).argmax(dim=-1)

    def _fed_forward(
        self, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, router: torch.Tensor
    ) -> torch.Tensor:
        if not self.experts:
            gate, value = (x @ up.T).chunk(2, dim=-1)
            return (silu(gate) * value) @ down.T
        scores, chosen = (x @ router.T).softmax(dim=-1).topk(self.active_experts)
        order = chosen.flatten().argsort()  # tokens of an expert lie side by side
        token = order // self.active_experts
        experts = torch.arange(self.experts, device=self.device)
        ends = torch.searchsorted(chosen.flatten()[order], experts, right=True).int()
        gate, value = _by_expert(x[token], up, ends).chunk(2, dim=-1)
        fed = _by_expert(silu(gate) * value, down, ends) * scores.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, token, fed)

    def _rotations(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(start, start + count, device=self.device, dtype=torch.float32)
        steps = torch.arange(0, self.size, 2, device=self.device, dtype=torch.float32)
        angles = torch.outer(positions, 10_000.0 ** (-steps / self.size))
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _by_expert(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply rows of `x`, sorted by expert, with its weights; expert e's end at `ends[e]`."""
    if x.device.type == "cuda":
        return torch._grouped_mm(x, weights.transpose(-2, -1), offs=ends)  # noqa: SLF001
    starts = [0, *ends.tolist()]
    parts = [
        x[start:end] @ weight.T
        for start, end, weight in zip(starts, starts[1:], weights, strict=False)
    ]
    return torch.cat(parts)


def _rotated(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def seconds_of(decoder: Decoder, asked: dict[str, int]) -> float:
    """Return the seconds of the prompt or step of decoding that `asked` describes."""

    def wait() -> None:
        if decoder.device.type == "cuda":
            torch.cuda.synchronize()

    if "batch" in asked:
        step, times = decoder.step(asked["batch"], asked["context"]), REPEATED
        step()
    else:
        uncached, cached, times = asked["uncached"], asked["cached"], 1
        tokens = torch.randint(100, 1000, (uncached,), device=decoder.device)
        decoder.prepare(cached)

        def step() -> int:
            return decoder.first_token(tokens, cached)

    wait()
    before = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return (time.perf_counter() - before) / times


def main(config_path: str, device: str) -> None:
    """Print the decoder's description, then the seconds that each line of standard input takes."""
    with open(config_path, encoding="utf-8") as file:  # noqa: PTH123  (needs no pathlib)
        decoder = Decoder(json.load(file), device)
    about = {
        "device": device,
        "dtype": str(decoder.dtype),
        "parameters": decoder.parameters(),
        "free_tokens": decoder.free_tokens(),
    }
    print(json.dumps(about), flush=True)  # noqa: T201  (its protocol)
    for line in sys.stdin:
        seconds = seconds_of(decoder, json.loads(line))
        print(json.dumps({"seconds": seconds}), flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        with torch.inference_mode():
            main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001  (the caller reports it)
        failure = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(failure), flush=True)  # noqa: T201
