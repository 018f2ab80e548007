"""A model of your own in torch: kvtrie keeps its K and V, and computes the attention over them.

    ./dev run python examples/own_model_torch.py

A small transformer with random weights. `step.attend` takes its q, k and v as torch tensors on the CPU and gives what
attention over the whole history makes of them; everything else is plain torch. Two prompts with the same beginning are
computed, the second one also from nothing, and compared.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn

import kvtrie as kv

HEADS, KV_HEADS, DIM = 8, 4, 32
HIDDEN, VOCAB = HEADS * DIM, 1000


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """RoPE of x [rows, heads, DIM]. K is stored as it is attended to, so it is rotated before."""
    frequencies = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    angles = positions[:, None, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Layer(nn.Module):
    """Attention and a gated network, each on a normalised input."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.before_attention, self.before_network = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False), nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor, step: kv.Step, positions: Tensor) -> Tensor:
        """x [rows, HIDDEN] -> the same."""
        heads = self.qkv(self.before_attention(x)).view(len(x), -1, DIM)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        attended = step.attend(self.index, rotate(q, positions), rotate(k, positions), v.contiguous())
        x = x + self.out(torch.from_dlpack(attended).view(len(x), HIDDEN))
        return x + self.down(nn.functional.silu(self.up(self.before_network(x))))


class Transformer(nn.Module):
    """model(step): logits [sessions, VOCAB] as numpy, which is what `kv.generate` asks of a model."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer(index) for index in range(layers))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

    def caches(self, capacity: int) -> list[kv.caches.CausalCache]:
        """What keeps the K and V of all layers, for `capacity` tokens."""
        return [kv.caches.CausalCache(range(len(self.layers)), KV_HEADS, DIM, capacity, dtype="float32")]

    @torch.no_grad()
    def forward(self, step: kv.Step) -> np.ndarray:
        """Computes one step of a session."""
        positions = torch.tensor(step.positions)
        x = self.embedding(torch.tensor(step.tokens))
        for layer in self.layers:
            x = layer(x, step, positions)
        logits: np.ndarray = self.head(self.norm(x[torch.tensor(step.last_rows)])).numpy()
        return logits


def first_logits(model: Transformer, cache: kv.PrefixCache, prompt: list[int]) -> tuple[np.ndarray, int, float]:
    """Logits behind the prompt, how many tokens of it were reused, and milliseconds."""
    began = time.perf_counter()
    with cache.begin(prompt) as session:
        for step in session.prefill(chunk=256):
            logits = model(step)
        return logits[0], session.reused, 1e3 * (time.perf_counter() - began)


def main() -> None:
    """Computes, compares, and prints what was saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1500, help="that both prompts have in common")
    options = parser.parse_args()
    kv.ops.warm_up(HEADS, KV_HEADS, DIM, dtype="float32")  # so that what is timed compiles nothing
    torch.manual_seed(7)
    model = Transformer(options.layers).eval()
    shared = torch.randint(VOCAB, (options.tokens,)).tolist()
    first, second = [*shared, 1, 2, 3], [*shared, 4, 5, 6, 7]

    with kv.PrefixCache(model.caches(2 * len(second)), fingerprint="random, seed 7") as cache:
        _, _, alone = first_logits(model, cache, first)
        reused_logits, reused, warm = first_logits(model, cache, second)
        print(f"the first prompt: {len(first)} tokens computed in {alone:.1f} ms")
        print(f"the second one: {reused} of {len(second)} tokens reused, the others computed in {warm:.1f} ms")
        with cache.begin(second) as session:
            print("it goes on with", list(kv.generate(model, session, max_tokens=5, ignore_eos=True)))
        cold_logits, _, cold = first_logits(model, kv.PrefixCache(model.caches(2 * len(second))), second)
    difference = float(np.abs(reused_logits - cold_logits).max())
    print(f"from nothing it takes {cold:.1f} ms, {cold / warm:.0f} times as long")
    print(f"largest difference of the logits: {difference:.1e} of {np.abs(cold_logits).max():.1f}")
    assert difference <= 1e-4 * float(np.abs(cold_logits).max()), "the logits differ"


if __name__ == "__main__":
    main()
