"""Conversations that signals interrupt: `interrupted_worker.py SEED ROUNDS FOLDER`, or `SEED term|exit FOLDER`.

With ROUNDS: SIGINT arrives at the n-th bytecode of a call, or at any moment of it by another thread; after each
everything is checked, and the same process goes on. With "term": works until a SIGTERM ends it; "exit": has a handler
that raises SystemExit(7).
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvtrie as kv
from fakes import DictStore
from kinds_fakes import KindsModel, make_caches, words

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny"
KINDS = ("dense", "window", "hybrid")


class Everything:
    """One cache of each kind with every tier, and what conversations do with it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.caches = make_caches(kind, 512, window=64, slots=12)
        self.model = KindsModel(self.caches)
        self.folder = folder
        self.kind = kind
        self.cache = self.make()
        self.sessions: list[Any] = []

    def make(self) -> kv.PrefixCache:
        options: dict[str, Any] = {"disk": str(self.folder / self.kind), "disk_bytes": "4MiB", "store": DictStore()}
        return kv.PrefixCache(
            self.caches, fingerprint="weights", host_bytes="256KiB", growth=16, checkpoint_every=64, **options
        )

    def talk(self, chance: random.Random) -> None:
        text = words(chance.randrange(6), 200)
        session = self.cache.begin([*text[: chance.randrange(20, 200)], chance.randrange(97)])
        self.sessions.append(session)
        for step in session.prefill(chunk=64):
            self.model(step)
        session.append(words(7, 3))
        self.model(session.decode())
        if len(self.sessions) > 3:
            self.sessions.pop(0).close()

    def branch(self, chance: random.Random) -> None:
        if not self.sessions:
            return
        session = chance.choice(self.sessions)
        other = session.branch()
        self.sessions.append(other)
        if other.can_rewind(other.length - 1):
            other.rewind(other.length - 1)
        other.checkpoint()

    def together(self, chance: random.Random) -> None:
        live = self.sessions[-2:]
        for session in live:
            session.append([chance.randrange(97)])
        if live:
            self.model(self.cache.batch(live, 64))

    def memory(self, chance: random.Random) -> None:
        text = words(chance.randrange(6), 100)
        chance.choice(
            [
                lambda: self.cache.page_out(
                    nbytes=self.cache.stats()["device_bytes"] // 8, to=chance.choice(["host", "disk", "store"])
                ),
                lambda: self.cache.restore(text),
                lambda: self.cache.evict(text),
                lambda: (self.cache.pin(text, ttl=1.0), self.cache.unpin(text)),
                lambda: self.cache.set_limits(host_bytes=chance.choice([65536, 262144])),
                self.cache.flush,
                lambda: self.cache.save(str(self.folder / f"{self.kind} saved")),
            ]
        )()

    def again(self, _: random.Random) -> None:
        """Closes it, and opens its folder."""
        self.sessions.clear()
        self.cache.close()
        self.cache = self.make()

    def check(self) -> None:
        """Nothing is wrong, sessions work or say by name that they do not, and the next call works."""
        if self.cache.closed:
            self.cache = self.make()
            self.sessions.clear()
        assert self.cache.check() == [], self.cache.check()
        for session in list(self.sessions):
            try:
                session.append([5])
                self.model(session.decode())  # which checks the rows
            except kv.errors.ClosedError:
                assert session.closed
                self.sessions.remove(session)
            except kv.errors.CacheFullError:
                self.sessions.remove(session)
        with self.cache.begin([1, 2, 3, 4]) as session:
            for step in session.prefill():
                self.model(step)
        assert self.cache.check() == []


class Texts:
    """The library's own loops on a model of the examples."""

    def __init__(self) -> None:
        self.model = kv.models.load(TINY)
        self.cache = kv.PrefixCache(self.model.caches(256, warm_up=False), host_bytes="1MiB")
        self.right = self.answer()

    def answer(self) -> list[int]:
        return list(kv.generate(self.model, self.cache.begin(self.model.tokenizer.encode("Once upon")), max_tokens=6))

    def talk(self, chance: random.Random) -> None:
        kind = chance.randrange(3)
        if kind == 0:
            assert self.answer() == self.right
        elif kind == 1:
            assert self.model.complete("Once upon", cache=self.cache, max_tokens=6).tokens is not None
        else:
            with kv.Batch(self.model, self.cache) as batch:
                made = [batch.add("Once upon", max_tokens=6) for _ in range(2)]
                while batch.step():
                    pass
            assert all(list(each.tokens) == self.right for each in made)

    def check(self) -> None:
        assert self.cache.check() == []
        assert self.answer() == self.right


class Interrupts:
    """SIGINT, once, in a call: at the n-th event that Python's tracing sees, or by another thread after a while."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def during(self, work: Callable[[], None]) -> bool:
        """Whether it came."""
        return self.at_a_bytecode(work) if self.chance.random() < 0.6 else self.at_a_moment(work)

    def at_a_bytecode(self, work: Callable[[], None]) -> bool:
        left = int(2 ** self.chance.uniform(0, 13))

        def trace(frame: Any, *_: Any) -> Any:
            nonlocal left
            frame.f_trace_opcodes = True
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
            return trace

        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    def at_a_moment(self, work: Callable[[], None]) -> bool:
        main = threading.main_thread().ident or 0
        done = threading.Event()
        wait = self.chance.uniform(0, 0.03)

        def send() -> None:
            if not done.wait(wait):
                signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=send)
        try:
            thread.start()
            try:
                work()
            finally:
                done.set()
                thread.join()
                time.sleep(0)  # one that is on its way arrives here
        except KeyboardInterrupt:
            done.set()
            thread.join()
            return True
        return False


def main(seed: int, rounds: int, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores it
    chance = random.Random(seed)
    interrupts = Interrupts(chance)
    caches = [Everything(kind, folder) for kind in KINDS]
    texts = Texts()
    came = 0
    for number in range(rounds):
        where: Any = chance.choice([*caches, texts])
        calls = (
            [where.talk] * 3
            if where is texts
            else [where.talk] * 3 + [where.branch, where.together, where.memory, where.memory, where.again]
        )
        call = chance.choice(calls)

        def work(call: Callable[..., None] = call) -> None:
            with contextlib.suppress(
                kv.errors.CacheFullError, kv.errors.NotRestorableError, kv.errors.NotSupportedError
            ):  # they have changed nothing
                call(chance)

        try:
            came += interrupts.during(work)
            while True:
                try:
                    where.check()
                    break
                except KeyboardInterrupt:  # one that a callback had put off
                    came += 1
        except BaseException:
            print(
                f"round {number} of seed {seed}: {getattr(call, '__name__', call)} of {type(where).__name__}",
                flush=True,
            )
            raise
    for each in caches:
        each.sessions.clear()
        each.cache.close()
    print(f"{rounds} rounds, {came} interrupts")


def until_ended(seed: int, how: str, folder: Path) -> None:
    if how == "exit":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    chance = random.Random(seed)
    caches = [Everything(kind, folder) for kind in KINDS]
    print("working", flush=True)
    while True:
        where = chance.choice(caches)
        with contextlib.suppress(kv.Error):
            chance.choice([where.talk, where.talk, where.branch, where.together, where.memory])(chance)


if __name__ == "__main__":
    if sys.argv[2] in ("term", "exit"):
        until_ended(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
