"""How fast does a whole model decode, beside llama.cpp on the same weights and threads?

Greedy steps of 1, 4 and 8 conversations at two histories, for the shipped model and a random one of 28M parameters:
everything from a step's tokens to the next ones on the host. With more than one conversation the history is a prefix
that all share: ours reads it once a step, llama.cpp's sequences share its cells (``seq_cp`` in a unified buffer, its
best mode here), with and without flash attention, of which the faster counts, row by row. Weights and K/V are float16
on both sides, threads as many as the machine has cores. ``--dtype q8_0``: matrices are q8_0 on both sides, the same
integers and scales. llama.cpp then rounds activations to 8 bits, too, and multiplies integers; ours stay float32.

Each sample decodes the same tokens from the same place. Outside the clock are cutting back, a pause in which the
threads of the other side go to sleep, and WARM steps after it, which wake the side's own. That both do the same work is
checked with both fed the same tokens: how many of the next ones agree, and by how much logits differ.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
import random_models
from colours import INK
from report import Report, arguments
from timing import Race, human, race, summarise

MODELS = ("tiny", "dense-28m")
BATCHES = (1, 4, 8)
HISTORIES = (16, 2048)
WARM, STEPS = 6, 16
PAUSE = 0.03  # seconds
PEER = "llama.cpp"
SETTINGS = {"flash": True, "no flash": False}  # the better of the two counts, row by row


class Ours:
    """Sessions on one published prefix, each one token further."""

    def __init__(self, model: Any, prompt: np.ndarray, firsts: np.ndarray) -> None:
        self._model = model
        cells = len(prompt) + 512 + len(firsts) * 512
        model.warm_up()  # all of it: no helper compiles beside what is timed, and steps are replayed
        self.cache = kv.PrefixCache(model.caches(capacity=cells), host_bytes=0)
        with self.cache.begin(prompt) as session:
            for step in session.prefill():
                model(step)
        self._start = len(prompt)
        self._firsts = firsts
        self._all = [self.cache.begin(np.append(prompt, first), publish=False) for first in firsts]
        for session in self._all:
            assert session.reused == len(prompt)
        self.cut(len(firsts))

    def cut(self, batch: int) -> None:
        self._sessions = self._all[:batch]
        for session, first in zip(self._sessions, self._firsts):
            session.rewind(self._start)
            session.append(first)

    def logits(self) -> Any:
        """Compute what is recorded; float32 [batch, vocab] on the device."""
        only = len(self._sessions) == 1
        return self._model(self._sessions[0].decode() if only else self.cache.batch(self._sessions))

    def append(self, tokens: np.ndarray) -> None:
        for session, token in zip(self._sessions, tokens):
            session.append(token)

    def run(self, steps: int) -> None:
        """Greedy steps."""
        for _ in range(steps):
            self.append(kv.ops.argmax(self.logits()).numpy())

    def launches(self) -> int:
        """Kernels enqueued so far."""
        return int(self._model.device.memory()["launches"])


class Peer:
    """The same with llama.cpp: sequences that share the prefix's cells."""

    def __init__(self, model: Any, prompt: np.ndarray, firsts: np.ndarray, flash: bool) -> None:
        tokens = len(prompt) + 512 + len(firsts) * 64
        self._context = model.context(tokens=tokens, sequences=len(firsts), flash_attention=flash)
        self._context.prefill(0, prompt)
        self._start = len(prompt)
        self._firsts = [int(first) for first in firsts]
        self.cut(len(firsts))

    def cut(self, batch: int) -> None:
        context = self._context
        context.remove(0, self._start)
        for sequence in range(1, len(self._firsts)):
            context.remove(sequence)
            if sequence < batch:
                context.copy(0, sequence)
        self._tokens, self._position = self._firsts[:batch], self._start

    def logits(self) -> np.ndarray:
        """float32 [batch, vocab], a view."""
        self._context.decode([(index, self._position, [token]) for index, token in enumerate(self._tokens)])
        self._position += 1
        return np.asarray(self._context.logits())

    def append(self, tokens: np.ndarray) -> None:
        self._tokens = [int(token) for token in tokens]

    def run(self, steps: int) -> None:
        """Greedy steps."""
        for _ in range(steps):
            self.append(self.logits().argmax(1))

    def close(self) -> None:
        self._context.close()


def timed(side: Any, batch: int, awake: list[float]) -> Callable[[], float]:
    """Seconds of one step, and how busy the process was while it should have slept."""

    def sample() -> float:
        side.cut(batch)
        time.sleep(PAUSE / 2)
        before = time.process_time()
        time.sleep(PAUSE / 2)
        awake.append((time.process_time() - before) / (PAUSE / 2))
        side.run(WARM)
        start = time.perf_counter()
        side.run(STEPS)
        return (time.perf_counter() - start) / STEPS

    return sample


def agreement(ours: Ours, peer: Peer, batch: int) -> tuple[float, float]:
    """With both fed our tokens: the share of next tokens that agree, and the largest difference of logits."""
    ours.cut(batch)
    peer.cut(batch)
    same, worst = [], 0.0
    for _ in range(STEPS):
        a, b = np.asarray(ours.logits()), peer.logits()
        same.append(a.argmax(1) == b.argmax(1))
        worst = max(worst, float(np.abs(a - b).max()))
        ours.append(a.argmax(1))
        peer.append(a.argmax(1))
    return float(np.mean(same)), worst


def launches_of(ours: Ours, batch: int) -> float:
    """Kernels a step."""
    ours.cut(batch)
    before = ours.launches()
    ours.run(STEPS)
    return (ours.launches() - before) / STEPS


def row(
    report: Report, kind: str, dtype: str, batch: int, history: int, ours: Ours, peers: dict[str, Peer], rounds: int
) -> None:
    awake: list[float] = []
    sides = {"kvtrie": timed(ours, batch, awake), **{name: timed(peer, batch, awake) for name, peer in peers.items()}}
    took: Race = race(sides, rounds=rounds, warm_up=2, clocked=tuple(sides))
    figures: dict[str, Any] = {"kvtrie": took["kvtrie"], "launches": launches_of(ours, batch)}
    text = (
        f"{kind:<10} batch {batch}  history {history:<5} ours {took['kvtrie']} = {batch / took['kvtrie'].median:.0f}/s"
    )
    text += f", {figures['launches']:.0f} launches"
    if peers:
        best = min(peers, key=lambda name: took[name].median)
        ratio = took.ratio(best, to="kvtrie")
        same, worst = agreement(ours, peers[best], batch)
        figures.update({"setting": best, "peer": took[best], "ratio": ratio, "same": same, "difference": worst})
        figures["awake"] = max(awake)
        text += f"   {PEER}, {best}, {took[best]} = {batch / took[best].median:.0f}/s   it takes {ratio}"
        text += (
            f"   next tokens equal {same:.0%}, logits within {worst:.2g}, busy in pauses {summarise(awake).median:.0%}"
        )
    report.row(text, model=kind, dtype=dtype, batch=batch, history=history, **figures)


def measure_model(report: Report, kind: str, dtype: str, llama: Any, folder: Path, rounds: int) -> None:
    start = time.perf_counter()
    model = random_models.build(kind, dtype=dtype)
    took = human(time.perf_counter() - start)
    size = f"{random_models.parameters(kind) / 1e6:.1f} M parameters, {model.nbytes / 2**20:.0f} MiB as {dtype}"
    report.note(f"{kind}: {size}, built in {took}")
    theirs = None
    if llama is not None:
        from peers import gguf_file

        found = random_models.config(kind)
        theirs = llama.Model(gguf_file.write(found, random_models.weights(kind), folder / f"{kind}.gguf", dtype))
    for history in HISTORIES:
        random = np.random.default_rng(history)
        prompt = random.integers(3, model.config.vocab_size, history, dtype=np.int32)
        firsts = random.integers(3, model.config.vocab_size, max(BATCHES), dtype=np.int32)
        ours = Ours(model, prompt, firsts)
        peers = {} if theirs is None else {name: Peer(theirs, prompt, firsts, on) for name, on in SETTINGS.items()}
        for batch in BATCHES:
            row(report, kind, dtype, batch, history, ours, peers, rounds)
        ours.cache.close()
        for peer in peers.values():
            peer.close()
    if theirs is not None:
        theirs.close()


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Tokens per second, both sides of each case next to each other, and how many times ours is as fast."""
    for index, case in enumerate(rows):
        for offset, side, name in ((-0.2, "kvtrie", "kvtrie"), (0.2, "peer", PEER)):
            if side not in case:
                continue
            seconds = case[side]
            speed = case["batch"] / seconds["median"]
            spread = [[speed - case["batch"] / seconds["high"]], [case["batch"] / seconds["low"] - speed]]
            axes.bar(index + offset, speed, 0.4, color="C0" if offset < 0 else "C1", label=name if index == 0 else None)
            axes.errorbar(index + offset, speed, spread, color=INK, linewidth=0.8)
        if "ratio" in case:
            top = max(case["batch"] / case[side]["low"] for side in ("kvtrie", "peer"))
            axes.text(index, top * 1.06, f"{case['ratio']['median']:.2g} x", ha="center", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("tokens per second")
    axes.set_xticks(range(len(rows)))
    names = [case["model"].replace("-", "\n") for case in rows]
    axes.set_xticklabels([f"{c['history']}\nx {c['batch']}\n{name}" for c, name in zip(rows, names)], fontsize=7)
    axes.set_xlabel("tokens of history, conversations at once (they share it), model")
    axes.legend()


def main() -> None:
    """One row for each model, history and number of conversations."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one")
    parser.add_argument("--dtype", choices=("float16", "q8_0"), default="float16", help="of the matrices")
    options = parser.parse_args()
    report = Report(f"tokens per second of greedy decoding, whole model, {options.dtype} weights", options.json)
    report.device(kv.Device())
    from peers import gguf_file, llama

    installed = llama.installed() and gguf_file.package() is not None
    if not installed:
        report.note(f"{PEER} is left out: ./dev peers installs it")
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.model or MODELS:
            measure_model(report, kind, options.dtype, llama if installed else None, Path(folder), options.rounds)
    report.close(draw)


if __name__ == "__main__":
    main()
