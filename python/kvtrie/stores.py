"""Stores that several processes and machines share: Redis, Valkey, any object with ``get``, ``put`` and ``delete``.

    cache = kv.PrefixCache(caches, fingerprint=..., store="redis://:password@host:6379/0?prefix=kv:&ttl=3600")

A store keeps bytes behind short ASCII keys and may forget any of them at any time. Its calls come from several threads
at once. Whatever a call raises is a failed call: the cache goes on without what it would have given. So a store needs
timeouts of its own: no call may block for ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional, Protocol, TypeVar, cast, runtime_checkable
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from .errors import ArgumentError, ArgumentTypeError, Error, NotSupported

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisStore", "Store", "StoreError", "open_store"]

Result = TypeVar("Result")

_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}  # ours -> the library's
_LIBRARY_OPTIONS = re.compile(r"ssl_[a-z_]+|client_name|max_connections|socket_keepalive|protocol")
_LARGEST_VALUE = 512 << 20  # bytes; the servers' own limit
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two tries
_IDLE_CHECK = 30  # seconds after which a connection is asked whether it still lives


class StoreError(Error):
    """A call of a shared store failed: no answer in time, no connection, or an error of the server."""


@runtime_checkable
class Store(Protocol):
    """What a shared store is. ``name`` is optional: for people, without a password in it."""

    def get(self, key: str) -> Optional[bytes]:
        """The bytes behind ``key``; None when there are none."""

    def put(self, key: str, value: bytes) -> None:
        """Keeps ``value`` behind ``key``, in place of what was there."""

    def delete(self, key: str) -> None:
        """Forgets what is behind ``key``, if anything."""


class RedisStore:
    """A Redis or Valkey server, through the ``redis`` package (``pip install 'kvtrie[store]'``).

    ``url``: ``redis://user:password@host:port/db?option=value&...``; ``valkey://`` is the same, ``rediss://`` and
    ``valkeys://`` use TLS. What has a meaning in a URL (``/``, ``?``, ``#``, ``@``) is percent-encoded in a password.
    Options:

    - ``prefix``: goes in front of every key; "".
    - ``ttl``: seconds after which a value goes, counted from when it was put; 86400. 0: never.
    - ``timeout``: seconds that connecting, and each wait for the next bytes of an answer, may take; 2.
    - ``retries``: further tries of a call that got no answer, with growing pauses; 1.
    - ``max_value``: bytes of one value, at most 2^29; 16777216. Larger contents are cut into several. A larger value in
      the store, which somebody else put there, counts as absent.
    - ``ssl_...``, ``client_name``, ``max_connections``, ``socket_keepalive``, ``protocol``: those of the package.

    Nothing connects before the first call; connections are kept in a pool, found dead when used and made again. Any
    thread may call. The password appears in no ``repr``, message or log. Raises ``ArgumentError`` for a URL or option
    that cannot be used, and ``NotSupported`` without the package; calls raise ``StoreError``.
    """

    def __init__(self, url: str) -> None:
        redis = _library()
        parts, options, rest = _split(url)
        self.prefix = options.pop("prefix", "")
        self.ttl = _number(options, "ttl", 86400.0, 0.0, 1e9)
        self.timeout = _number(options, "timeout", 2.0, 0.001, 3600.0)
        self.retries = int(_number(options, "retries", 1, 0, 100, whole=True))
        self.max_value = int(_number(options, "max_value", 16 << 20, 1024, _LARGEST_VALUE, whole=True))
        if 0 < self.ttl < 0.001:
            raise ArgumentError(f"[RedisStore] ttl: got {self.ttl}, allowed 0 or at least 0.001 seconds")
        self.name = f"{parts.scheme}://{_host(parts)}:{parts.port or 6379}/{parts.path.strip('/') or 0}"
        self._secrets = {text for text in (parts.password, unquote(parts.password or "")) if text}
        self._retry = redis.retry.Retry(redis.backoff.ExponentialBackoff(_LONGEST_PAUSE, _FIRST_PAUSE), self.retries)
        library_url = urlunsplit((_SCHEMES[parts.scheme], parts.netloc, parts.path, urlencode(rest), ""))
        try:
            self._client: Redis = redis.Redis.from_url(
                library_url,
                socket_timeout=self.timeout,
                socket_connect_timeout=self.timeout,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),  # the library's own would multiply: see _call
                health_check_interval=_IDLE_CHECK,
                decode_responses=False,
            )
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"[RedisStore] url: {self._without_secret(error)}") from None

    def get(self, key: str) -> Optional[bytes]:
        """The bytes behind ``key``; None when there are none, or more than ``max_value``."""
        value, there = self._call("get", lambda: self._bounded_get(self.prefix + key))
        return value if there and len(value) <= self.max_value else None

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
        """Closes the connections; a later call makes new ones."""
        self._client.close()

    def __repr__(self) -> str:
        return f"<kvtrie.stores.RedisStore {self.name} prefix={self.prefix!r} ttl={self.ttl:g}>"

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "[pickle] object: got RedisStore, allowed nothing with a password; make one from its URL"
        )

    def _bounded_get(self, key: str) -> tuple[bytes, bool]:
        """At most one byte more than ``max_value``, and whether there is a value: an empty one is not an absent one."""
        with self._client.pipeline(transaction=False) as both:
            both.getrange(key, 0, self.max_value)
            both.exists(key)
            value, there = both.execute()
        return value, bool(there)

    def _call(self, what: str, work: Callable[[], Result]) -> Result:
        """``work``'s result after at most ``retries`` further tries.

        The client tries a connection again inside each try of a command, which makes (retries + 1)^2; here it is told
        not to, and its ``Retry`` goes around the whole.
        """
        redis = _library()
        try:
            return cast(Result, self._retry.call_with_retry(work, lambda _: None))
        except (redis.RedisError, OSError, TypeError, ValueError) as error:
            text = f"{type(error).__name__}: {self._without_secret(error)}"
            raise StoreError(f"[RedisStore.{what}] {self.name}: {text}") from None

    def _without_secret(self, error: BaseException) -> str:
        text = str(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


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


def _library() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError:
        raise NotSupported(
            "[RedisStore] redis: the package is not installed; install it with: pip install 'kvtrie[store]'"
        ) from None
    return redis


def _split(url: str) -> tuple[SplitResult, dict[str, str], dict[str, str]]:
    """The URL's parts, our options in it, and those of the library. Its texts may hold a password: none is repeated."""
    if not isinstance(url, str):
        raise ArgumentTypeError(f"[RedisStore] url: got {type(url).__name__}, allowed str")
    if any("\ud800" <= letter <= "\udfff" for letter in url):
        raise ArgumentError(
            "[RedisStore] url: got a str with lone surrogates, allowed text that can be written as UTF-8"
        )
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ArgumentError("[RedisStore] url: got a host or port that is none, allowed redis://host:port/db") from None
    if parts.scheme not in _SCHEMES or "://" not in url:
        raise ArgumentError(f"[RedisStore] url: got another scheme, allowed {', '.join(f'{s}://' for s in _SCHEMES)}")
    if parts.fragment or "@" in parts.path + parts.query or not re.fullmatch(r"/?|/\d+", parts.path):
        raise ArgumentError(
            "[RedisStore] url: got something else than a database number behind the host, allowed redis://host:port/db "
            "with '/', '?', '#' and '@' percent-encoded in a password and in options"
        )
    ours: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ours or name in rest:
            raise ArgumentError(f"[RedisStore] {name}: got it twice, allowed once")
        if name in ("prefix", "ttl", "timeout", "retries", "max_value"):
            ours[name] = value
        elif _LIBRARY_OPTIONS.fullmatch(name):
            rest[name] = value
        else:
            raise ArgumentError(
                f"[RedisStore] url: got option {name!r}, allowed prefix, ttl, timeout, retries, max_value, ssl_..., "
                "client_name, max_connections, socket_keepalive, protocol"
            )
    return parts, ours, rest


def _host(parts: SplitResult) -> str:
    host = parts.hostname or "localhost"
    return f"[{host}]" if ":" in host else host


def _number(
    options: dict[str, str], name: str, default: float, least: float, most: float, whole: bool = False
) -> float:
    """The option as a number in least .. most."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(int(text)) if whole else float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise ArgumentError(f"[RedisStore] {name}: got {text!r}, allowed {kind} from {least:.12g} to {most:.12g}")
    return value
