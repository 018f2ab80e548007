"""Every public way to generate, on models without weights: what is read on after an exception must be the same tokens.

A :class:`Way` is made anew for each run. ``go`` reads to the end; it is called again after an exception, and goes on
with the objects that there are. ``tokens`` is what came of it, ``handed`` what the reader was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import kvtrie as kv
from kinds_fakes import VOCAB, History, make_caches
from kvtrie._draft_chance import Chance
from kvtrie._drafting import Costs
from kvtrie.generate import begin_text
from processes import PATIENCE
from spelling_model import TextModel, Texts

PROMPTS = ([5, 6, 7, 11, 12], [5, 6, 7, 11, 13], [40, 41])
COUNT = 5  # tokens of an answer
SHORT = 3


def right(prompt: Sequence[int], count: int = COUNT) -> list[int]:
    """What every way has to give."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(History("default", tokens).codes[0, -1] % VOCAB))
    return tokens[len(prompt) :]


def text_of(tokens: Sequence[int]) -> str:
    stream = Texts().stream()
    return "".join([*(stream.feed(token) for token in tokens), stream.finish()])


class Run:
    """What a sweep plays: one run of a way to generate, and what it has to give."""

    cache: Any
    open: Any = None
    handed: list[Any]
    wanted: Any
    handed_wanted: ClassVar[list[Any]] = []

    def go(self) -> None:
        raise NotImplementedError

    @property
    def tokens(self) -> list[Any]:
        """Of each answer."""
        return [list(self.open.tokens)]

    def leave(self) -> None:
        """What a caller does with what it has: closes it."""
        if self.open is not None:
            self.open.close()
            self.open = None

    def close(self) -> None:
        self.leave()
        self.cache.close()


class Way(Run):
    """Over a cache of ``kind``."""

    wanted: ClassVar[list[Any]] = [right(PROMPTS[0])]
    handed_wanted: ClassVar[list[Any]] = right(PROMPTS[0])

    def __init__(self, kind: str) -> None:
        caches = make_caches(kind, 96, window=8, chunk=8, slots=24)
        self.model = TextModel(caches)
        self.cache = kv.PrefixCache(caches, host_bytes=0, growth=16, checkpoint_every=8)
        self.model.prefix_cache = self.cache
        self.handed = []


class Generate(Way):
    """``for token in kv.generate(model, prompt)``."""

    options: ClassVar[dict[str, Any]] = {"chunk": 2}

    def begin(self) -> Any:
        return kv.generate(self.model, PROMPTS[0], COUNT, **self.options)

    def go(self) -> None:
        if self.open is None:
            self.open = self.begin()
        for token in self.open:
            self.handed.append(token)


class GenerateSession(Generate):
    """In a session of the caller's own, with log-probabilities, a processor, a stop text and progress."""

    session: Any = None

    def begin(self) -> Any:
        if self.session is None or self.session.closed:
            self.session = self.cache.begin(PROMPTS[0])
        return kv.generate(
            self.model,
            self.session,
            COUNT,
            stop=["never so"],
            logprobs=2,
            logits_processors=lambda tokens, row: None,
            chunk=2,
            progress=lambda done, total: None,
        )

    def go(self) -> None:
        super().go()
        assert [each.token for each in self.open.logprobs] == self.open.tokens

    def leave(self) -> None:
        super().leave()
        if self.session is not None:
            self.session.close()


class Branch(Generate):
    """In a branch of a session in which everything is computed, so that its last token is computed once more."""

    session: Any = None

    def begin(self) -> Any:
        if self.session is None or self.session.closed:
            session = self.cache.begin(PROMPTS[0])
            for step in session.prefill():
                self.model(step)
            self.session = session.branch()
        return kv.generate(self.model, self.session, COUNT)

    def leave(self) -> None:
        super().leave()
        if self.session is not None:
            self.session.close()


class AsyncFor(Generate):
    """``async for`` over the same."""

    def go(self) -> None:
        if self.open is None:
            self.open = self.begin()

        async def read() -> None:
            async for token in self.open:
                self.handed.append(token)

        asyncio.run(read())


class Await(Generate):
    """``await generation``."""

    handed_wanted: ClassVar[list[Any]] = []

    def go(self) -> None:
        if self.open is None:
            self.open = self.begin()

        async def read() -> None:
            await self.open

        asyncio.run(read())


class Replies(Generate):
    """``for piece in model.complete(...)``, of which one piece may take several tokens."""

    handed_wanted: ClassVar[list[Any]] = [text_of(right(PROMPTS[0]))]

    def begin(self) -> Any:
        return begin_text(self.model, PROMPTS[0], {"max_tokens": COUNT, "stop": ["never so"], "chunk": 2})

    def go(self) -> None:
        super().go()
        self.handed[:] = ["".join(self.handed)]
        if self.open.finish_reason != "closed":  # which leaves out what may be the beginning of a stop text
            assert self.open.text_so_far == text_of(self.open.tokens)


class AsyncReplies(Replies):
    """The same with ``async for``."""

    def go(self) -> None:
        AsyncFor.go(self)  # type: ignore[arg-type]
        self.handed[:] = ["".join(self.handed)]


class Batches(Way):
    """``while batch.step()`` over three answers, two of which share a prefix."""

    handed_wanted: ClassVar[list[Any]] = []
    wanted: ClassVar[list[Any]] = [right(prompt, SHORT) for prompt in PROMPTS]
    sessions = 2
    count = SHORT

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.answers: list[Any] = []

    def begin(self) -> Any:
        return kv.Batch(self.model, self.cache, max_sessions=self.sessions, chunk=2)

    def go(self) -> None:
        if self.open is None:
            self.open = self.begin()
        while len(self.answers) < len(PROMPTS):
            number = len(self.answers)
            before = len(self.open)
            try:
                self.answers.append(self.open.add(PROMPTS[number], self.count, checkpoints=[2]))
            except BaseException:
                assert len(self.open) in (before, before + 1)
                self.open.close()  # an answer that nobody has would be computed beside the others
                self.open = None
                self.answers.clear()
                raise
        while self.open.step():
            pass

    @property
    def tokens(self) -> list[list[int]]:
        return [list(each.tokens) for each in self.answers]


class CrowdedBatches(Batches):
    """Where not all fit, so that one gives its room back and begins again."""

    sessions = 3

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        caches = make_caches(kind, 16, window=8, chunk=8, slots=24)
        self.model = TextModel(caches)
        self.cache = kv.PrefixCache(caches, host_bytes=0, growth=4, checkpoint_every=8)


class AnyCosts(Costs):
    """Drafts are as many as there may be, so that every run passes the same points."""

    def shares(
        self, chances: Sequence[Chance], limits: Sequence[int], rows: int, decoding: int, prices: Sequence[float] = ()
    ) -> list[int]:
        return list(limits)


def half_right(tokens: Sequence[int], most: int) -> list[int]:
    """Drafts of which every third is wrong."""
    drafts = right(tokens, most)
    return [(token + (len(tokens) + at) % 3 // 2) % VOCAB for at, token in enumerate(drafts)]


class DraftedBatches(Batches):
    """With drafts, right and wrong, of which a step checks several; prompts are beside them."""

    wanted: ClassVar[list[Any]] = [right(prompt, COUNT) for prompt in PROMPTS]
    count = COUNT

    def begin(self) -> Any:
        batch = kv.Batch(self.model, self.cache, max_sessions=self.sessions, chunk=2, draft=half_right)
        batch._costs = AnyCosts()
        return batch


class GenerateBatch(Way):
    """``kv.generate_batch``, which gives all answers or none."""

    handed_wanted: ClassVar[list[Any]] = []
    wanted: ClassVar[list[Any]] = Batches.wanted

    def go(self) -> None:
        self.answers = kv.generate_batch(self.model, PROMPTS, SHORT, cache=self.cache, max_sessions=2, chunk=2)

    @property
    def tokens(self) -> list[list[int]]:
        return [list(each.tokens) for each in self.answers]


class Score(Way):
    """``kv.score``, which gives all scores or none."""

    handed_wanted: ClassVar[list[Any]] = []
    wanted: ClassVar[list[Any]] = [[1, 2, 3], [4, 5], [6]]

    def go(self) -> None:
        self.scores = kv.score(self.model, PROMPTS[0], self.wanted, cache=self.cache, max_sessions=2, chunk=2)

    @property
    def tokens(self) -> list[list[int]]:
        return [each.tokens for each in self.scores]


class Batchers(Way):
    """``for token in batcher.submit(prompt)``: one place, and nobody may wait, so a place that is lost is seen."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.batcher: Any = None
        self.reader: Any = None

    def submit(self) -> Any:
        return self.batcher.submit(PROMPTS[0], COUNT)

    def begin(self) -> None:
        if self.batcher is None:
            self.batcher = kv.Batcher(self.model, self.cache, max_sessions=1, chunk=2, max_waiting=0)
        while self.open is None:
            try:
                self.open = self.submit()
            except kv.errors.BusyError:  # the one that an exception took from us is about to end
                assert self.batcher.stats()["active"] + self.batcher.stats()["waiting"] <= 1

    def read(self) -> Iterator[Any]:
        if self.reader is None:
            self.reader = iter(self.open)
        return self.reader  # type: ignore[no-any-return]

    def go(self) -> None:
        self.begin()
        for token in self.read():
            self.handed.append(token)

    def leave(self) -> None:
        if self.open is not None:
            self.open.cancel()
            self.open = self.reader = None
        if self.batcher is not None:
            self.batcher.close()
            stats = self.batcher.stats()
            assert (stats["active"], stats["waiting"], stats["waiting_tokens"]) == (0, 0, 0), stats
            assert stats["submitted"] == stats["finished"] + stats["cancelled"] + stats["failed"], stats
            self.batcher = None


class Results(Batchers):
    """``request.result()``."""

    handed_wanted: ClassVar[list[Any]] = []

    def go(self) -> None:
        self.begin()
        self.open.result(PATIENCE)


class AsyncBatchers(Batchers):
    """``async for`` over a request."""

    def read(self) -> Any:
        if self.reader is None:
            self.reader = aiter_of(self.open)
        return self.reader

    def go(self) -> None:
        self.begin()

        async def read() -> None:
            async for token in self.read():
                self.handed.append(token)

        asyncio.run(read())


class TextRequests(Batchers):
    """``for piece in batcher.complete(...)``."""

    handed_wanted: ClassVar[list[Any]] = [text_of(right(PROMPTS[0]))]

    def submit(self) -> Any:
        text = "".join(chr(32 + token) for token in PROMPTS[0])
        return self.batcher.complete(text, COUNT, stop="never so")

    def go(self) -> None:
        super().go()
        self.handed[:] = ["".join(self.handed)]


class AsyncTextRequests(TextRequests):
    """The same with ``async for``."""

    read = AsyncBatchers.read

    def go(self) -> None:
        AsyncBatchers.go(self)  # type: ignore[arg-type]
        self.handed[:] = ["".join(self.handed)]


def aiter_of(request: Any) -> Any:
    return request.__aiter__()


WAYS: tuple[Callable[[str], Way], ...] = (
    Generate,
    GenerateSession,
    Branch,
    AsyncFor,
    Await,
    Replies,
    AsyncReplies,
    Batches,
    CrowdedBatches,
    DraftedBatches,
    GenerateBatch,
    Score,
    Batchers,
    Results,
    AsyncBatchers,
    TextRequests,
    AsyncTextRequests,
)
