"""One world of the campaign: a cache of some kind, tier and policy, what is beside and below it, and its rules.

`World(seed)` follows from its seed alone. Threads share its sessions, and any of them may close its cache and open
another one on the same pools, folder and store. At the end `verify` reads all that is known, and `leave` gives it up.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Optional

import kvtrie as kv
from kinds_fakes import image, make_caches, words
from naming import NamingModel
from processes import PATIENCE

KINDS = ("dense", "window", "chunk", "hybrid", "window alone", "chunk alone", "recurrent alone", "all")
TIERS = ("device", "host", "disk", "store", "redis", "disk and store")
POLICIES = ("lru", "slru", "cost")
NAMESPACES = ("a", "b", "ab")
SESSIONS = 5
LONGEST = 220  # tokens of a prompt
WINDOW, CHUNK, SPACING = 24, 40, 32


class Broken(Exception):
    """A promise that was not kept."""


class Shelf:
    """A store in a dict that fails, forgets, damages and calls back as its dice say."""

    def __init__(self, dice: random.Random, faults: bool) -> None:
        self.values: dict[str, bytes] = {}
        self.dice, self.faults, self.injected = dice, faults, 0
        self.inside: Optional[Callable[[str], None]] = None  # called in every call of it

    def get(self, key: str) -> Optional[bytes]:
        self._meet("get")
        value = self.values.get(key)
        if self.faults and value and self.dice.random() < 0.05:
            self.injected += 1
            at = self.dice.randrange(len(value))
            return self.dice.choice([value[:at], value + b"x", value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :]])
        return value

    def put(self, key: str, value: bytes) -> None:
        self._meet("put")
        self.values[key] = bytes(value)
        if len(self.values) > 400:
            self.values.pop(next(iter(self.values)), None)

    def delete(self, key: str) -> None:
        self._meet("delete")
        self.values.pop(key, None)

    def _meet(self, call: str) -> None:
        if self.inside is not None:
            self.inside(call)
        if self.faults and self.dice.random() < 0.05:
            self.injected += 1
            raise self.dice.choice([OSError("unplugged"), ValueError("odd"), KeyError(call), MemoryError()])


class Clock:
    """Seconds that pass with each look, and may stand, jump, run backwards or raise."""

    def __init__(self, dice: random.Random, faults: bool) -> None:
        self.dice, self.faults, self.now = dice, faults, 1000.0

    def __call__(self) -> float:
        self.now += self.dice.random() * 0.01
        if self.faults and self.dice.random() < 0.005:
            self.now += self.dice.choice([-5.0, 0.0, 40.0, 3600.0])
        if self.faults and self.dice.random() < 0.002:
            raise RuntimeError("no time")
        return self.now


class World:
    """Chosen by ``seed``. ``url`` is of a Redis server, where there is one; ``place`` is where K, V and states are."""

    def __init__(self, seed: str, url: Optional[str] = None, place: Any = "host") -> None:
        dice = self.dice = random.Random(seed)
        self.seed, self.url = seed, url
        self.kind, self.policy = dice.choice(KINDS), dice.choice(POLICIES)
        self.tier = dice.choice([tier for tier in TIERS if url is not None or tier != "redis"])
        self.faults = dice.random() < 0.5  # of the store, the clock and files
        self.folder = Path(tempfile.mkdtemp(prefix="kvtrie-campaign-"))
        self.pools = make_caches(
            self.kind, dice.randrange(320, 900), slots=dice.randrange(10, 40), window=WINDOW, chunk=CHUNK, device=place
        )
        self.shelf = Shelf(random.Random(f"{seed} shelf"), self.faults)
        self.options = self._options()
        self.texts = self._texts()
        self.turn = threading.Lock()  # guards what follows
        self.sessions: list[Any] = [None] * SESSIONS
        self.pins: list[tuple[Any, list[int], str]] = []  # those that stay until the end
        self.opened = self.injected = self.unread = 0
        self.cache: Any = self._open()

    def _options(self) -> dict[str, Any]:
        dice = self.dice
        options: dict[str, Any] = {
            "fingerprint": "campaign",
            "policy": self.policy,
            "load": dice.choice(["auto", "always"]),
            "growth": dice.choice([0, 3, 16, 64]),
            "checkpoint_every": SPACING,
            "host_bytes": 0 if self.tier == "device" else dice.choice([20_000, 60_000, 400_000]),
        }
        if dice.random() < 0.7:
            options["clock"] = Clock(random.Random(f"{self.seed} clock"), self.faults)
            options["ttl"] = dice.choice([None, None, 5.0])
        if "disk" in self.tier:
            options.update(disk=self.folder / "own", disk_bytes=dice.choice([60_000, 300_000, 4_000_000]))
        if "store" in self.tier:
            options["store"] = self.shelf
        if self.tier == "redis":
            options["store"] = self.url
        return options

    def _texts(self) -> list[list[int]]:
        """Prompts that share beginnings; in a third of the worlds some have an image inside."""
        dice, texts = self.dice, []
        trunk = words(dice.randrange(1000), 120)
        seen = image("a picture", 9) if dice.random() < 0.3 else []
        for number in range(10):
            at = dice.choice([0, 1, WINDOW, 63, 64, 65, 100, 120])
            texts.append(trunk[:at] + (seen if number % 3 == 0 else []) + words(dice.randrange(1000), 70))
        return texts

    def describe(self) -> str:
        what = f"{self.kind}, {self.tier}, {self.policy}, ttl {self.options.get('ttl')}"
        return what + (", with faults" if self.faults else "")

    def model(self, dice: Optional[random.Random] = None) -> NamingModel:
        return NamingModel(self.pools, dice)

    # ---- opening and closing ----

    def _open(self) -> Any:
        """A cache on these pools, as soon as the one before has gone: one that a callback closed takes a moment."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                cache = kv.PrefixCache(self.pools, **self.options)
            except kv.Error as error:
                going = "belongs to a prefix cache" in str(error) or "holds open" in str(error)
                if not going or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
                continue
            self.opened += 1
            return cache

    def close_and_reopen(self, how: str) -> None:
        """By whatever thread: ``how`` is "close", or "callback": from within the store."""
        with self.turn:
            cache = self.cache
            if how == "callback" and "store" in self.tier:
                self.shelf.inside = lambda call: cache.close()
                with contextlib.suppress(kv.Error):
                    cache.flush()
                self.shelf.inside = None
            cache.close()
            self.cache = self._open()

    def take(self, index: int) -> Any:
        with self.turn:
            return self.sessions[index]

    def give(self, index: int, session: Any) -> None:
        with self.turn:
            self.sessions[index] = session

    # ---- what holds at any moment ----

    def look(self) -> None:
        """Budgets and invariants now, whatever others do."""
        cache = self.cache
        stats = cache.stats()
        for each in stats["caches"]:
            self._expect(each["held_cells"] + each["free_cells"] <= each["capacity_cells"], f"cells: {each}")
            self._expect(0 <= each["held_cells"] <= each["limit_cells"], f"cells: {each}")
        for each in stats["recurrent"]:
            self._expect(0 <= each["free_slots"] <= each["capacity_slots"], f"slots: {each}")
        self._expect(0 <= stats["host_bytes"] <= stats["host_cap_bytes"], "more in host memory than its cap")
        disk = stats["disk"]
        if disk is not None:
            self._expect(0 <= disk["bytes"] <= disk["cap_bytes"], f"more on the disk than its cap: {disk}")
        wrong = {name: value for name, value in stats.items() if isinstance(value, int) and value < 0}
        self._expect(not wrong, f"below zero: {wrong}")
        if not self.faults:
            self._expect(stats["checksum_failures"] == 0, "bytes changed")
            self._expect(disk is None or disk["failed_writes"] + disk["failed_reads"] == 0, f"the disk failed: {disk}")
        found = cache.check()
        self._expect(found == [], f"check(): {found}")

    @staticmethod
    def _expect(right: bool, what: str) -> None:
        if not right:
            raise Broken(what)

    def damage_a_file(self, dice: random.Random) -> None:
        """A byte, the end or the whole of a file of the disk tier, behind the cache's back."""
        names = [name for name in os.listdir(self.folder / "own") if name != "lock" and not name.startswith("tmp-")]
        if not names:
            return
        path = self.folder / "own" / dice.choice(sorted(names))
        try:
            with path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                at, how = dice.randrange(max(size, 1)), dice.randrange(3)
                if how == 0:
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 1]) if byte else b"")
                elif how == 1:
                    file.truncate(at)
                else:
                    path.unlink()
        except FileNotFoundError:
            return  # it was evicted meanwhile
        with self.turn:
            self.injected += 1

    # ---- the end ----

    def verify(self) -> int:
        """Reads all that open sessions, the tree and a reopened folder or store have; rows and states compared."""
        model = self.model()
        for index in range(SESSIONS):
            session = self.take(index)
            if session is not None and not session.closed:
                self._read(model, session)
                session.close()
            self.give(index, None)
        self.look()
        self._unpin()
        gc.collect()  # sessions in cycles
        self._read_all(model)
        if self.tier != "device" and self.dice.random() < 0.5:
            self._save_and_open(model)
        self.close_and_reopen("close")
        self._read_all(model)
        self.look()
        return model.compared

    def pin(self, text: list[int], namespace: str, stays: bool) -> None:
        cache = self.cache
        cache.pin(text, namespace)
        if stays:
            with self.turn:
                self.pins.append((cache, text, namespace))
        else:
            cache.unpin(text, namespace)

    def _unpin(self) -> None:
        for cache, text, namespace in self.pins:
            with contextlib.suppress(kv.errors.ClosedError):
                cache.unpin(text, namespace)
        self.pins = []

    def _read(self, model: NamingModel, session: Any) -> None:
        """All that the next token of a session sees."""
        try:
            with session.branch() as branch:
                branch.append(1)
                for step in branch.prefill():
                    model(step)
        except kv.errors.CacheFullError:
            self.unread += 1  # others hold the room; what they hold is looked at in their turn

    def _read_all(self, model: NamingModel) -> None:
        for text in self.texts:
            for namespace in NAMESPACES:
                with self.cache.begin(text, namespace) as session:
                    for step in session.prefill(chunk=64):
                        model(step)

    def _save_and_open(self, model: NamingModel) -> None:
        try:
            self.cache.save(self.folder / "saved")
        except kv.errors.FormatError:
            return  # more than host memory takes
        self.look()
        caches = make_caches(self.kind, 600, slots=24, window=WINDOW, chunk=CHUNK)
        other = kv.PrefixCache.open(
            self.folder / "saved", caches, fingerprint="campaign", host_bytes=400_000, checkpoint_every=SPACING
        )
        reader = NamingModel(caches)
        with other:
            for text in self.texts:
                with other.begin(text, NAMESPACES[0]) as session:
                    for step in session.prefill():
                        reader(step)
            self._expect(other.check() == [], "check() of a saved cache")
        model.compared += reader.compared

    def leave(self, by_collection: bool) -> None:
        """Closes the cache, or forgets it in a cycle and has it collected; its pools must be empty either way."""
        cache, self.cache, self.sessions, self.pins = self.cache, None, [], []
        if by_collection:
            ring: list[Any] = [cache]
            ring.append(ring)
            del ring, cache
            gc.collect()
        else:
            cache.close()
        for pool in self.pools:
            free = pool.free_slots if isinstance(pool, kv.caches.RecurrentCache) else pool.free_cells
            self._expect(free == pool.capacity, f"{pool.capacity - free} of {pool.capacity} are held in the end")
        shutil.rmtree(self.folder)
