"""One thread of the campaign: random calls on what all threads share, each done or refused by name."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections import Counter
from typing import Any

import kvtrie as kv
from naming import ModelFailed
from processes import PATIENCE
from world import LONGEST, NAMESPACES, SESSIONS, Broken, World

ANYWHERE = (
    kv.errors.ClosedError,
    kv.errors.BusyError,
    kv.errors.CacheFullError,
    kv.errors.NotRestorableError,
    ModelFailed,
)
ALSO = {  # and what else a call may say, as others made other calls meanwhile, or the world lacks a tier
    "batch": ("nothing left to compute", "belongs to another", "twice"),
    "checkpoint": ("does not publish",),
    "decode": ("nothing left to compute",),
    "limits": ("is set aside for sending",),
    "page_out": ("there is no",),
    "save": ("could not take everything",),
}


class Caller:
    """The calls of one thread, which its seed gives; which calls of others they meet is chance."""

    def __init__(self, world: World, seed: str) -> None:
        self.world, self.dice = world, random.Random(seed)
        self.model = world.model(random.Random(f"{seed} model"))
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.calls = {name[5:]: getattr(self, name) for name in dir(self) if name.startswith("call_")}
        self.often = {"prefill": 14, "decode": 12, "begin": 8, "branch": 4, "reopen": 0.15, "save": 0.3, "fork": 0.05}

    def run(self, operations: int) -> None:
        names = list(self.calls)
        weights = [self.often.get(name, 2) for name in names]
        for _ in range(operations):
            name = self.dice.choices(names, weights)[0]
            try:
                self.calls[name]()
            except ANYWHERE as error:
                self.refused[type(error).__name__] += 1
            except kv.Error as error:
                if not any(text in str(error) for text in ALSO.get(name, ())):
                    raise Broken(f"{name}: {type(error).__name__}: {error}") from error
                self.refused[type(error).__name__] += 1
            self.done[name] += 1

    # ---- what they are made of ----

    def _prompt(self) -> tuple[list[int], str]:
        """A prompt, often cut, and whose it is."""
        text = self.dice.choice(self.world.texts)
        length = self.dice.randrange(1, len(text) + 1) if self.dice.random() < 0.4 else len(text)
        while 0 < length < len(text) and text[length] < 0:  # not inside an image
            length += 1
        return text[:length], self.dice.choice(NAMESPACES)

    def _session(self) -> Any:
        """One of those that all threads share; a new one where there is none."""
        index = self.dice.randrange(SESSIONS)
        session = self.world.take(index)
        if session is None or session.closed or len(session.tokens) > LONGEST:
            session = self.call_begin(index)
        return session

    # ---- conversations ----

    def call_begin(self, index: int | None = None) -> Any:
        text, namespace = self._prompt()
        session = self.world.cache.begin(
            text, namespace, publish=self.dice.random() < 0.9, use=self.dice.random() < 0.9
        )
        self.world.give(self.dice.randrange(SESSIONS) if index is None else index, session)
        return session

    def call_prefill(self) -> None:
        """To its end, cancelled between two steps, or dropped in the middle of one."""
        session, chunk = self._session(), self.dice.randrange(1, 100)
        left = self.dice.randrange(1, 4) if self.dice.random() < 0.25 else 1000
        steps = session.prefill(chunk=chunk)
        for step in steps:
            if left == 0:
                return  # the generator and its open step go
            self.model(step)
            left -= 1
            if left == 0 and self.dice.random() < 0.5:
                return

    def call_decode(self) -> None:
        session = self._session()
        for _ in range(self.dice.randrange(1, 5)):
            session.append(self.dice.randrange(50))
            if self.dice.random() < 0.9:
                self.model(session.decode())

    def call_branch(self) -> None:
        branch = self._session().branch()
        if self.dice.random() < 0.5:
            self.world.give(self.dice.randrange(SESSIONS), branch)
            return
        with branch:
            branch.append([self.dice.randrange(50), 3])
            for step in branch.prefill():
                self.model(step)

    def call_rewind(self) -> None:
        session = self._session()
        length = self.dice.randrange(session.length + 1)
        if session.can_rewind(length) or self.dice.random() < 0.3:
            session.rewind(length)

    def call_checkpoint(self) -> None:
        self._session().checkpoint()

    def call_batch(self) -> None:
        first, second = self._session(), self._session()
        for session in (first, second):
            if not len(session.remaining):
                session.append(self.dice.randrange(50))
        self.model(self.world.cache.batch([first, second], chunk=self.dice.randrange(1, 60)))

    def call_close(self) -> None:
        self._session().close()

    def call_forget(self) -> None:
        """The last reference to a session goes, perhaps in a cycle."""
        index = self.dice.randrange(SESSIONS)
        ring: list[Any] = [self.world.take(index)]
        self.world.give(index, None)
        ring.append(ring)

    # ---- what is known ----

    def call_pin(self) -> None:
        text, namespace = self._prompt()
        self.world.pin(text, namespace, self.dice.random() < 0.2)

    def call_page_out(self) -> None:
        text, namespace = self._prompt()
        to = self.dice.choice(["host", "disk", "store"])
        if self.dice.random() < 0.3:
            self.world.cache.page_out(nbytes=self.dice.randrange(5000), to=to)
        else:
            self.world.cache.page_out(text, to=to, namespace=namespace)

    def call_evict(self) -> None:
        text, namespace = self._prompt()
        if self.dice.random() < 0.3:
            self.world.cache.evict(nbytes=self.dice.randrange(5000))
        else:
            self.world.cache.evict(text, namespace=namespace)

    def call_restore(self) -> None:
        text, namespace = self._prompt()
        reached = self.world.cache.restore(text, namespace)
        if not 0 <= reached <= len(text):
            raise Broken(f"restore: {reached} of {len(text)} tokens")

    def call_plan(self) -> None:
        text, namespace = self._prompt()
        plan = self.world.cache.plan(text, namespace)
        if not 0 <= plan.reusable <= plan.matched <= len(text):
            raise Broken(f"plan: {plan}")

    def call_look(self) -> None:
        self.world.look()
        self.world.cache.nodes()

    def call_limits(self) -> None:
        dice, world = self.dice, self.world
        limits = {
            "held_cells": dice.choice([0, 0, 300, 500]),
            "host_bytes": dice.choice([20_000, 60_000, 400_000]),
            "disk_bytes": dice.choice([60_000, 300_000, 4_000_000]),
        }
        if not world.cache.stats()["caches"]:
            del limits["held_cells"]
        if world.tier == "device":
            del limits["host_bytes"]
        if "disk" not in world.tier:
            del limits["disk_bytes"]
        world.cache.set_limits(**limits)

    def call_flush(self) -> None:
        if self.world.tier not in ("device", "host"):
            self.world.cache.flush()

    def call_save(self) -> None:
        if self.world.tier != "device":
            own = "disk" in self.world.tier and self.dice.random() < 0.5
            self.world.cache.save(self.world.folder / ("own" if own else f"save-{os.getpid()}"))

    # ---- the world around them ----

    def call_collect(self) -> None:
        gc.collect(self.dice.randrange(3))

    def call_damage(self) -> None:
        if self.world.faults and "disk" in self.world.tier:
            self.world.damage_a_file(self.dice)

    def call_reopen(self) -> None:
        self.world.close_and_reopen(self.dice.choice(["close", "callback"]))

    def call_fork(self) -> None:
        """A child that was forked in the middle of everything is refused by name, and ends."""
        cache = self.world.cache
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                try:
                    cache.stats()
                except (kv.errors.NotSupportedError, kv.errors.ClosedError):
                    cache.close()
                    os._exit(0)
            os._exit(1)
        deadline = time.monotonic() + PATIENCE
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline:
                os.kill(child, 9)
                os.waitpid(child, 0)
                raise Broken("a forked child hangs")
            time.sleep(0.002)
        if status != 0:
            raise Broken(f"a forked child ended with {status}")
