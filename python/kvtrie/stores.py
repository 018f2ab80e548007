"""Stores that several processes and machines share: Redis, Valkey, any object with ``get``, ``put`` and ``delete``.

    cache = kv.PrefixCache(caches, fingerprint=..., store="redis://:password@host:6379/0?prefix=kv:&ttl=3600")

A store keeps bytes behind short ASCII keys and may forget any of them at any time. Its calls come from several threads
at once. Whatever a call raises is a failed call: the cache goes on without what it would have given. So a store needs
timeouts of its own: no call may block for ever.

A store that can answer several keys in one round trip says so with a fourth method, which is asked instead of ``get``:

    def get_many(self, keys: list[str], most: int, seconds: Optional[float]) -> list[Optional[bytes]]

The answer has a value or None for each key. ``most``: bytes of one value; a larger one may be None. ``seconds``: what
the whole call may take before it should raise, None where it may take what the store's own timeouts allow.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from functools import cached_property
from typing import Any, NoReturn, Optional, Protocol, TypeVar, cast, runtime_checkable

from . import _redis
from ._locks import make_lock
from ._whole import Whole
from .errors import ArgumentError, ArgumentTypeError, StoreError

__all__ = ["RedisStore", "Store", "open_store"]

Result = TypeVar("Result")

_LARGEST_VALUE = 512 << 20  # bytes; the servers' own limit
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two tries


@runtime_checkable
class Store(Protocol):
    """A shared store. ``get_many`` (above) is optional, and so is ``name``: for people, no password in it."""

    def get(self, key: str) -> Optional[bytes]:
        """The bytes behind ``key``; None when there are none."""

    def put(self, key: str, value: bytes) -> None:
        """Keeps ``value`` behind ``key``, in place of what was there."""

    def delete(self, key: str) -> None:
        """Forgets what is behind ``key``, if anything."""


class RedisStore(Whole):
    """Redis or Valkey, through the ``redis`` package (``pip install 'kvtrie[store]'``): a server, a cluster, replicas.

    ``url``: ``redis://user:password@host:port/db?option=value&...``; ``valkey://`` is the same, ``rediss://`` and
    ``valkeys://`` use TLS. What has a meaning in a URL (``/``, ``?``, ``#``, ``@``) is percent-encoded in a password.
    ``redis+cluster://host:port,host:port`` is a cluster, of which some nodes are named; ``redis+sentinel://host:port,
    host:port/service/db`` the primary that sentinels name, also after it has changed; with ``rediss``, ``valkey`` and
    ``valkeys`` as well. Options:

    - ``prefix``: goes in front of every key; "".
    - ``ttl``: seconds after which a value goes, counted from when it was put; 86400. 0: never.
    - ``timeout``: seconds that connecting, and each wait for the next bytes of an answer, may take; 2.
    - ``retries``: further tries of a call that got no answer, with growing pauses; 1.
    - ``max_value``: bytes of one value, at most 2^29; 16777216. Larger contents are cut into several. A larger value in
      the store, which somebody else put there, counts as absent.
    - ``replicas``: 1: replicas are read, too. What one lacks as yet counts as absent; 0. Of a cluster or service.
    - ``sentinel_password``: what the sentinels ask for; none.
    - ``ssl_...``, ``client_name``, ``max_connections``, ``socket_keepalive``, ``protocol``: those of the package.

    Nothing connects before the first call; connections are kept in a pool, found dead when used and made again. Any
    thread may call. The password appears in no ``repr``, message or log. Raises ``ArgumentError`` for a URL or option
    that cannot be used, and ``NotSupportedError`` without the package; calls raise ``StoreError``.
    """

    def __init__(self, url: str) -> None:
        redis = _redis.library()
        self._place = _redis.read_url(url)
        options = self._place.ours
        self.prefix: str = options.get("prefix", "")
        self.ttl: float = _redis.number(options, "ttl", 86400.0, 0.0, 1e9)
        self.timeout: float = _redis.number(options, "timeout", 2.0, 0.001, 3600.0)
        self.retries: int = int(_redis.number(options, "retries", 1, 0, 100, whole=True))
        self.max_value: int = int(_redis.number(options, "max_value", 16 << 20, 1024, _LARGEST_VALUE, whole=True))
        self.replicas: bool = bool(_redis.number(options, "replicas", 0, 0, 1, whole=True))
        if 0 < self.ttl < 0.001:
            raise ArgumentError(f"[RedisStore] ttl: got {self.ttl}, allowed 0 or at least 0.001 seconds")
        self.name: str = self._place.name
        self._retry = redis.retry.Retry(redis.backoff.ExponentialBackoff(_LONGEST_PAUSE, _FIRST_PAUSE), self.retries)
        self._making = make_lock()
        self._closing: Optional[Callable[[], None]] = None  # of the clients that there are
        try:
            _redis.check(self._place)
            if not self._place.needs_a_server_to_begin:
                self._clients  # noqa: B018  what it refuses is refused here
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"[RedisStore] url: {self._without_secret(error)}") from None

    def get(self, key: str) -> Optional[bytes]:
        """The bytes behind ``key``; None when there are none, also as an empty value, or more than ``max_value``."""
        return self._call("get", lambda: self._bounded_get([key], self.max_value))[0]

    def get_many(
        self, keys: Sequence[str], most: Optional[int] = None, seconds: Optional[float] = None
    ) -> list[Optional[bytes]]:
        """The values behind each key, in one round trip (of each node that has some); None as for ``get``.

        ``most``: bytes of one value, ``max_value`` unless it is less. ``seconds``: after so many it raises, whatever
        the server does; the call ends in the background as ``timeout`` says. None: it takes what ``timeout`` and
        ``retries`` allow.
        """
        limit = self.max_value if most is None else min(most, self.max_value)
        return self._call("get_many", lambda: self._bounded_get(keys, limit), seconds) if keys else []

    def put(self, key: str, value: bytes) -> None:
        """Keeps ``value``, ``max_value`` bytes at most, behind ``key`` for ``ttl`` seconds."""
        if len(value) > self.max_value:
            raise ArgumentError(f"[RedisStore.put] value: got {len(value)} bytes, allowed {self.max_value} (max_value)")
        milliseconds = math.ceil(self.ttl * 1000) or None
        self._call("put", lambda: self._client.set(self.prefix + key, value, px=milliseconds))

    def delete(self, key: str) -> None:
        """Forgets what is behind ``key``, if anything."""
        self._call("delete", lambda: self._client.delete(self.prefix + key))

    def close(self) -> None:
        """Closes the connections; a later call makes new ones. A store that nobody has any more does so by itself."""
        with self._making:
            self.__dict__.pop("_clients", None)
            closing, self._closing = self._closing, None
        if closing is not None:
            closing()

    def __repr__(self) -> str:
        return f"<kvtrie.stores.RedisStore {self.name} prefix={self.prefix!r} ttl={self.ttl:g}>"

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "[pickle] object: got RedisStore, allowed nothing with a password; make one from its URL"
        )

    @cached_property
    def _clients(self) -> tuple[_redis.Client, _redis.Client]:
        with self._making:  # one thread asks a cluster for its nodes, the others wait for it
            made: Optional[tuple[_redis.Client, _redis.Client]] = self.__dict__.get("_clients")
            if made is None:
                made = _redis.make_clients(self._place, self.timeout, self.replicas)
                # Tracebacks make circles of clients, where the collector may come to a socket before what closes it.
                self._closing = weakref.finalize(self, _close_all, made)
                self._closing.atexit = False
            return made

    @property
    def _client(self) -> _redis.Client:
        return self._clients[0]

    def _bounded_get(self, keys: Sequence[str], most: int) -> list[Optional[bytes]]:
        """One byte more than ``most`` of each value at most. To ask whether there is one would be a second question,
        to which a value that comes or goes in between makes the answer wrong; so an empty one counts as absent."""
        with self._clients[1].pipeline(transaction=False) as all_:
            for key in keys:
                all_.getrange(self.prefix + key, 0, most)
            values: list[bytes] = all_.execute()
        return [value if 0 < len(value) <= most else None for value in values]

    def _call(self, what: str, work: Callable[[], Result], seconds: Optional[float] = None) -> Result:
        """``work``'s result after at most ``retries`` further tries, within ``seconds``.

        The client tries a connection again inside each try of a command, which makes (retries + 1)^2; here it is told
        not to, and its ``Retry`` goes around the whole.
        """
        redis = _redis.library()
        try:
            if seconds is not None:
                return _within(seconds, lambda wanted: self._try(lambda: work() if wanted() else _refuse()))
            return self._try(work)
        except (redis.RedisError, OSError, TypeError, ValueError, futures.TimeoutError) as error:
            text = f"{type(error).__name__}: {self._without_secret(error)}"
            raise StoreError(f"[RedisStore.{what}] {self.name}: {text}") from None

    def _try(self, work: Callable[[], Result]) -> Result:
        return cast(Result, self._retry.call_with_retry(work, lambda _: None))

    def _without_secret(self, error: BaseException) -> str:
        text = str(error)
        for secret in self._place.secrets:
            text = text.replace(secret, "***")
        return text


def _close_all(clients: Sequence[_redis.Client]) -> None:
    for client in clients:
        with suppress(Exception):  # nobody hears of it; the sockets go with the client, too
            client.close()


def open_store(store: Any) -> Store:
    """A store from what a user gives: the URL of a server, or an object with ``get``, ``put`` and ``delete``."""
    if isinstance(store, str):
        return RedisStore(store)
    missing = [name for name in ("get", "put", "delete") if not callable(getattr(store, name, None))]
    if missing or isinstance(store, type):
        raise ArgumentTypeError(
            f"[store] store: got {type(store).__name__} without {', '.join(missing) or 'an instance'}, "
            "allowed a URL or an object with get(key), put(key, value) and delete(key)"
        )
    result: Store = store
    return result


def _within(seconds: float, work: Callable[[Callable[[], bool]], Result]) -> Result:
    """The result or error of ``work``, or ``TimeoutError`` after so many seconds: then it ends in a thread of its own.

    The client's timeouts are those of a connection, and of each wait for bytes: neither connecting nor a slow trickle
    of bytes can be bounded by them. ``work`` gets a function that says whether anybody still waits.
    """
    done: futures.Future[Result] = futures.Future()
    late = threading.Event()
    threading.Thread(target=_run, args=(done, late, work), name="kvtrie store").start()
    try:
        return done.result(max(seconds, 0.0))
    except futures.TimeoutError:
        if done.done():  # it is what `work` raised
            raise
        late.set()
        raise futures.TimeoutError(f"no answer within {seconds:.3g} s") from None
    finally:
        del done  # what was raised knows this frame, and would keep itself


def _run(done: futures.Future[Result], late: threading.Event, work: Callable[[Callable[[], bool]], Result]) -> None:
    try:
        done.set_result(work(lambda: not late.is_set()))
    except BaseException as error:  # it is raised where somebody waits
        done.set_exception(error)
    finally:
        del done, work  # the same


def _refuse() -> NoReturn:
    raise ValueError("nobody waits for it any more")
