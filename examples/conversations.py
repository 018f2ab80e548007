"""Several conversations over one model, on a device too small for all of them: what the prefix cache saves, and proof.

    ./dev demo                                   # SmolLM2-135M-Instruct, which is downloaded once
    ./dev demo --model tiny                      # the model in examples/tiny, which was trained for tests
    ./dev demo --model path/to/checkpoint        # a folder or a GGUF file; docs/own_family.md lists the families

All conversations start from one long system prompt. They take turns, branch from each other, edit an earlier question,
ask for another answer and come back after their state went to host memory. After each turn the same prompt is computed
again from nothing, in a cache of its own and forced onto the same tokens. The last line compares the two: every greedy
token must be the same, and the logits must differ by no more than K/V in this precision allows. The exit status is 1 if
they do not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np

import kvtrie as kv
from demo_screen import Screen, TurnReport
from plot import PLOT, Transcript, Turn, longest_prompt, readable, system_transcript

CHUNK = 256
TOLERANCE = {"float16": 1e-3, "float32": 1e-4}  # largest difference of logits, relative to the largest logit


class Listener:
    """Stands between `kv.generate` and the model: keeps the last logits, and tells how many rows were computed."""

    def __init__(self, model: Any) -> None:
        self.config, self.tokenizer = model.config, model.tokenizer
        self.model = model
        self.logits = np.zeros(0, np.float32)
        self.on_rows: Callable[[int], None] = lambda _: None

    def __call__(self, step: Any) -> Any:
        logits = self.model(step)
        self.logits = np.asarray(logits)[-1]  # also waits until the step is done, so that progress and times are true
        self.on_rows(len(step.tokens))
        return logits


@dataclass
class Verdict:
    """Cached against cold, position by position."""

    tolerance: float
    positions: int = 0
    different: int = 0
    near_ties: int = 0
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)

    def compare(self, label: str, warm: np.ndarray, cold: np.ndarray) -> float:
        """Logits [tokens, vocab] of both runs; returns max|warm - cold| / max|cold| and keeps the worst.

        The likeliest token must be the same wherever the cold run's lead of the first over the second is more than
        twice the largest difference found (at most the tolerance). Where it is less, either is right: such positions
        are counted, not judged.
        """
        largest = float(np.abs(cold).max())
        furthest = float(np.abs(warm - cold).max())
        difference = furthest / largest
        top = np.sort(np.partition(cold, -2, axis=-1)[:, -2:], axis=-1)
        clear = (top[:, 1] - top[:, 0]) > 2 * min(furthest, self.tolerance * largest)
        same = warm.argmax(axis=-1) == cold.argmax(axis=-1)
        self.positions += len(cold)
        self.near_ties += int((~clear).sum())
        self.different += int((~same & clear).sum())
        self.worst = max(self.worst, difference)
        if not np.isfinite(difference) or difference > self.tolerance:
            self.failures.append(f"{label}: logits differ by {difference:.1e}")
        if (~same & clear).any():
            self.failures.append(f"{label}: another token at answer position {int((~same & clear).argmax())}")
        return difference

    def sentence(self) -> str:
        """The last line of the demo."""
        equal = self.positions - self.different
        ties = f" ({self.near_ties} near ties not judged)" if self.near_ties else ""
        allowed = f"{self.worst:.1e} (allowed {self.tolerance:.0e})"
        return f"{equal} of {self.positions} tokens equal the cold run's{ties}, largest difference in logits {allowed}"


@dataclass
class Settings:
    tokens: int
    seed: int


class Demo:
    """Plays the plot on `cache`, and each turn again on `cold`, a cache that reuses and keeps nothing."""

    def __init__(self, model: Any, cache: Any, cold: Any, settings: Settings, screen: Screen, verdict: Verdict) -> None:
        self.listener = Listener(model)
        self.tokenizer = model.tokenizer
        self.cache, self.cold = cache, cold
        self.settings, self.screen, self.verdict = settings, screen, verdict
        self.prompts: dict[str, Transcript] = {}
        self.transcripts: dict[str, Transcript] = {}
        self.reports: list[TurnReport] = []

    def play(self, system: Transcript) -> None:
        self.transcripts[""] = system
        for number, turn in enumerate(PLOT, start=1):
            before = self.transcripts[turn.after]
            prompt = self.prompts[turn.again] if turn.again else before.ask(self.tokenizer, turn.says)
            self.prompts[turn.label] = prompt
            self.screen.turn(number, turn.who, turn.what, prompt.messages[-1]["content"])
            report, tokens, warm = self._cached(number, turn, prompt)
            report.cold_ms, cold = self._cold(prompt, tokens)
            report.difference = self.verdict.compare(f"turn {number} ({turn.label})", warm, cold)
            self.transcripts[turn.label] = prompt.answer(self.tokenizer, tokens)
            self.reports.append(report)
            self.screen.facts(report)

    def resume(self, label: str) -> Any:
        """A live session at the end of a turn."""
        return self.cache.begin(self.transcripts[label].tokens, reuse_all=True)

    def _cached(self, number: int, turn: Turn, prompt: Transcript) -> tuple[TurnReport, list[int], np.ndarray]:
        tokens: list[int] = []
        rows: list[np.ndarray] = []
        speaker = self.screen.speaker(self.tokenizer)
        started = time.perf_counter()
        first = started
        with self.cache.begin(prompt.tokens) as session:
            with self.screen.progress("prefill", len(session.remaining)) as self.listener.on_rows:
                stream = kv.generate(
                    self.listener,
                    session,
                    self.settings.tokens,
                    turn.heat,
                    top_k=40,
                    seed=self.settings.seed,
                    chunk=CHUNK,
                )
                tokens.append(next(stream))
                first = time.perf_counter()
            rows.append(self.listener.logits)
            speaker.feed(tokens[0])
            for token in stream:
                tokens.append(token)
                rows.append(self.listener.logits)
                speaker.feed(token)
            report = TurnReport(
                number, turn.who, turn.what, len(prompt.tokens), session.matched, session.reused, str(session.tier),
                session.bytes_moved, warm_ms=1e3 * (first - started),
            )  # fmt: skip
        speaker.finish()
        return report, tokens, np.stack(rows)

    def _cold(self, prompt: Transcript, tokens: Sequence[int]) -> tuple[float, np.ndarray]:
        """The same from nothing, forced onto `tokens`: milliseconds to the first token, logits [tokens, vocab]."""
        started = time.perf_counter()
        with self.cold.begin(prompt.tokens, use=False, publish=False) as session:
            with self.screen.progress("cold run", len(prompt.tokens)) as self.listener.on_rows:
                for step in session.prefill(chunk=CHUNK):
                    self.listener(step)
                first = time.perf_counter()
            rows = [self.listener.logits]
            for token in tokens[:-1]:
                session.append(token)
                self.listener(session.decode())
                rows.append(self.listener.logits)
        return 1e3 * (first - started), np.stack(rows)


def parse_arguments(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a Hugging Face folder, a GGUF file, or tiny; None: SmolLM2 where it was downloaded",
    )
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="float16", help="how K and V are stored")
    parser.add_argument(
        "--capacity", type=int, default=0, metavar="CELLS", help="tokens the device may hold; 0: too few for all"
    )
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="longest answer, in tokens")
    parser.add_argument("--seed", type=int, default=1, help="of the answer that is sampled")
    parser.add_argument("--plain", action="store_true", help="no colour, no progress bars")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, screen: Screen) -> int:
    """The whole demo; returns the exit status."""
    chosen = kv.models.default.choose(options.model)
    if chosen.note:
        screen.note(chosen.note)
    with screen.loading(chosen.name) as progress:
        model = kv.models.load(chosen.path, progress=progress)
    if not model.has_tokenizer:
        raise kv.errors.NotSupportedError(f"[demo] {chosen.path}: no tokenizer.json, and conversations are text")
    system = system_transcript(Path(chosen.path))
    longest, total = longest_prompt(model.tokenizer, system, options.tokens)
    capacity = options.capacity or longest + (total - longest) // 4
    with screen.waiting("compiling kernels (the first time only)"):
        model.warm_up(options.dtype)
    cache = kv.PrefixCache(model.caches(capacity, options.dtype), fingerprint=model.fingerprint, clock=time.monotonic)
    cold = kv.PrefixCache(model.caches(longest + 64, options.dtype))
    verdict = Verdict(TOLERANCE[options.dtype])
    demo = Demo(model, cache, cold, Settings(options.tokens, options.seed), screen, verdict)
    screen.opening(model, cache, options.dtype, capacity, total)
    demo.play(system)
    screen.table(demo.reports)
    with demo.resume("anna 4"), demo.resume("chloe 1b"):
        screen.tree(cache, readable(model.tokenizer))
    failures = verdict.failures + cache.check()
    for failure in failures:
        screen.failure(failure)
    screen.verdict(not failures, verdict.sentence())
    cold.close()
    cache.close()
    return 1 if failures else 0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = parse_arguments(arguments)
    screen = Screen(options.plain)
    try:
        return run(options, screen)
    except kv.Error as error:
        screen.failure(f"{type(error).__name__}: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
