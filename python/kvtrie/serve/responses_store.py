"""Responses that are kept: what ``previous_response_id`` goes on from, also after a restart.

Concept. A response is a branch of its conversation. Kept are the items that came with its request and those of its
answer, beside the id of the response that it goes on from; the K/V of all that is the tree's, which finds it by the
tokens, in whatever tier it is. So a record is some kilobytes of text, and a conversation is a walk along the ids:

    resp_a  [ user, answer ]
       '---- resp_b  [ user, answer ]          previous: resp_a
       '---- resp_c  [ tool's output, answer ] previous: resp_a

Bounded: the oldest records go first. One in the middle of a walk that has gone, or was deleted, ends it: what goes on
from there is refused by name, as half of a conversation is another one.

A file (SQLite) in the folder of the disk tier, which one server at a time has, from the first record on; without a
folder, memory. A file that is none of ours, or damaged, is moved aside and said in the log.
Threads: any; a call may wait for the disk, so not the event loop's.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .failures import Refusal
from .json_values import JsonObject

_log = logging.getLogger("kvtrie.serve")
_NONE_KEPT = (
    "no responses are kept here, as this is one of several replicas, and the next request may come to another one; "
    "send the whole conversation as input"
)
_VERSION = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, id TEXT NOT NULL, previous TEXT,
    response TEXT NOT NULL, items TEXT NOT NULL, bytes INTEGER NOT NULL, UNIQUE (namespace, id)
)"""


@dataclass(frozen=True)
class Kept:
    """``response``: as it was answered. ``items``: what came with its request. ``previous``: or None."""

    response: JsonObject
    items: list[JsonObject]
    previous: str | None


class ResponseStore:
    """``path``: None for memory. ``most``: records; 0: nothing is kept, as in a replica. ``most_bytes``: of all
    records."""

    def __init__(self, path: Path | None, most: int = 10_000, most_bytes: int = 256 << 20) -> None:
        self._path, self._most, self._most_bytes = path, most, most_bytes
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._closed = False

    @property
    def keeps(self) -> bool:
        """Whether anything can be kept."""
        return self._most > 0 and not self._closed

    def require_kept(self, param: str, status: int) -> None:
        """Raises ``Refusal`` with the reason where no response is ever kept."""
        if self._most == 0:
            raise Refusal(status, f"{param}: {_NONE_KEPT}", code="unsupported_parameter", param=param)

    def _opened(self, to_keep: bool = False) -> sqlite3.Connection | None:
        """None: there is nothing, and nothing ``to_keep``. REQUIRES: the lock."""
        if self._database is None and self.keeps and (to_keep or (self._path is not None and self._path.exists())):
            self._database = _memory() if self._path is None else _opened(self._path)
        return self._database

    def keep(self, namespace: str, response: JsonObject, items: Sequence[JsonObject], previous: str | None) -> bool:
        """Whether it is kept now; why not is in the log."""
        texts = json.dumps(response), json.dumps(list(items))
        size = sum(map(len, texts))
        try:
            with self._lock:
                database = self._opened(to_keep=True)
                if database is None or size > self._most_bytes:
                    return False
                with database:
                    database.execute(
                        "INSERT INTO responses (namespace, id, previous, response, items, bytes) VALUES (?,?,?,?,?,?)",
                        (namespace, response["id"], previous, *texts, size),
                    )
                    self._make_room(database)
                return True
        except (sqlite3.Error, OSError) as error:
            _log.warning("serve: a response was not kept: %s", error)
            return False

    def _make_room(self, database: sqlite3.Connection) -> None:
        (count, size) = database.execute("SELECT COUNT(*), SUM(bytes) FROM responses").fetchone()
        oldest = database.execute("SELECT number, bytes FROM responses ORDER BY number")
        while count > self._most or size > self._most_bytes:
            number, freed = oldest.fetchone()
            database.execute("DELETE FROM responses WHERE number = ?", (number,))
            count, size = count - 1, size - freed

    def find(self, namespace: str, made: str) -> Kept | None:
        """None: it is not known, or no more."""
        with self._lock:
            database = self._opened()
            if database is None:
                return None
            found = database.execute(
                "SELECT response, items, previous FROM responses WHERE namespace = ? AND id = ?", (namespace, made)
            ).fetchone()
        return None if found is None else Kept(json.loads(found[0]), json.loads(found[1]), found[2])

    def conversation(self, namespace: str, made: str) -> list[JsonObject]:
        """All items up to the end of that response. Raises ``Refusal``: 404 where some of it is not known, 400 where
        nothing is ever kept."""
        self.require_kept("previous_response_id", 400)
        parts: list[list[JsonObject]] = []
        at: str | None = made
        while at is not None:
            kept = self.find(namespace, at)
            if kept is None:
                behind = "" if at == made else f", which {made[:100]!r} goes on from"
                what = f"there is no response {at[:100]!r}{behind}"
                raise Refusal(404, what, code="previous_response_not_found", param="previous_response_id")
            parts.append([*kept.items, *kept.response["output"]])
            at = kept.previous
        return [item for part in reversed(parts) for item in part]

    def remove(self, namespace: str, made: str) -> bool:
        """Whether there was one."""
        with self._lock:
            database = self._opened()
            if database is None:
                return False
            with database:
                gone = database.execute(
                    "DELETE FROM responses WHERE namespace = ? AND id = ?", (namespace, made)
                ).rowcount
        return gone > 0

    def close(self) -> None:
        """It may be called again; nothing is kept or found afterwards."""
        with self._lock:
            self._closed = True
            database, self._database = self._database, None
            if database is not None:
                database.close()


def _memory() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute(_TABLE)
    return database


def _opened(path: Path) -> sqlite3.Connection:
    """The file's, or that of a new one. Raises ``sqlite3.Error`` and ``OSError`` where none can be made."""
    try:
        return _connected(path)
    except sqlite3.DatabaseError as error:
        aside = path.with_name(path.name + ".damaged")
        _log.warning("serve: %s cannot be read (%s): it is %s now, and its responses are not known", path, error, aside)
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        path.replace(aside)
        return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        with closing(database.execute("PRAGMA user_version")) as found:
            (version,) = found.fetchone()
        (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if version != (_VERSION if tables else 0):
            raise sqlite3.DatabaseError(f"got version {version} with {tables} tables and indexes, allowed {_VERSION}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version = {_VERSION}")
        return database
    except BaseException:
        database.close()
        raise
