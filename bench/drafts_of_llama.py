"""llama.cpp's drafters beside ours in bench_speculate.py: which of its settings is the quickest, and its row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from peers import llama, llama_drafts
from peers.llama_drafts import Answer, Setting
from report import Report
from timing import Race

_TRIED = 100  # tokens of an answer, by which the quickest setting is chosen
PLAIN, DRAFTED = "llama.cpp plain", "llama.cpp drafted"


def peer(gguf: Path) -> Peer | None:
    """None where ``./dev peers`` has not built it."""
    return Peer(gguf) if llama_drafts.installed() else None


class Peer:
    """The weights and two contexts, with flash attention and without, with as many threads as the machine has cores.

    Neither is the quicker one everywhere: prompts are read faster with it, rows behind long ones computed slower.
    """

    def __init__(self, gguf: Path) -> None:
        self._model = llama.Model(os.fspath(gguf))
        self._contexts = {flash: self._model.context(tokens=4096, flash_attention=flash) for flash in (True, False)}

    def answers(
        self, prompt: Sequence[int], text: Sequence[int] | None, count: int, known: Sequence[Sequence[int]], again: bool
    ) -> Answers:
        """To ``prompt``; ``text``: what is to come, None for what it writes. ``known``: other requests' texts;
        ``again``: the very answer is known."""
        for context in self._contexts.values():
            context.clear()
            context.prefill(0, prompt[:-1])
        if again:
            said = llama_drafts.answer(self._contexts[True], None, prompt, text, count).tokens
            known = [*known, [*prompt, *said]]
        return Answers(self._contexts, prompt, text, count, known)


class Way(NamedTuple):
    """How an answer is made: ``setting`` None for plain decoding."""

    setting: Setting | None
    flash: bool

    def __str__(self) -> str:
        return f"{self.setting or 'plain'}{'' if self.flash else ', no flash'}"


class Answers:
    """To one prompt: plain, and with the quickest of all settings, each in the quicker of the contexts."""

    def __init__(
        self,
        contexts: Mapping[bool, llama.Context],
        prompt: Sequence[int],
        text: Sequence[int] | None,
        count: int,
        known: Sequence[Sequence[int]],
    ) -> None:
        self._count = count
        self._made: dict[str, Answer] = {}

        def answer(way: Way, most: int = count) -> Answer:
            return llama_drafts.answer(contexts[way.flash], way.setting, prompt, text, min(most, count), known)

        def quickest(ways: Iterable[Way]) -> Way:
            return min(ways, key=lambda way: answer(way, _TRIED).seconds)

        self._answer = answer
        self.plain = quickest(Way(None, flash) for flash in contexts)
        best = quickest(Way(setting, self.plain.flash) for setting in llama_drafts.SETTINGS)
        self.best = quickest(Way(best.setting, flash) for flash in contexts)

    @property
    def sides(self) -> dict[str, Callable[[], float]]:
        """For ``timing.race``, by its own clock: without what opens a drafter."""
        return {PLAIN: self._side(PLAIN, self.plain), DRAFTED: self._side(DRAFTED, self.best)}

    def _side(self, name: str, way: Way) -> Callable[[], float]:
        def run() -> float:
            self._made[name] = self._answer(way)
            return self._made[name].seconds

        return run

    def row(self, report: Report, task: str, raced: Race, ours: Sequence[str]) -> None:
        """``ours``: the sides that it is compared with."""
        plain, drafted = self._made[PLAIN], self._made[DRAFTED]
        same = plain.tokens == drafted.tokens
        right = f"{drafted.accepted} of {drafted.proposed} drafts right, {drafted.steps} steps"
        ratio, rate = raced.ratio(PLAIN, DRAFTED), self._count / raced[DRAFTED].median
        beside = {each: raced.ratio(DRAFTED, each) for each in ours}
        report.row(
            f"{task:10} llama.cpp, {self.best}: {ratio}  {rate:6.1f} tokens/s, {right}, "
            f"{'same text' if same else 'ANOTHER TEXT'}; llama.cpp / ours "
            + ", ".join(f"{each} {its}" for each, its in beside.items()),
            task=task, drafter=f"llama.cpp {self.best}", ratio=ratio, tokens_per_second=rate, same_text=same,
            plain_tokens_per_second=self._count / raced[PLAIN].median, proposed=drafted.proposed,
            accepted=drafted.accepted, steps={"plain": plain.steps, "drafted": drafted.steps}, llama_over_ours=beside,
        )  # fmt: skip
