"""The parts of a Redis or Valkey store's URL, and the clients of the ``redis`` package that it asks for.

    redis://user:password@host:port/db?option=value&...          one server
    redis+cluster://user:password@host:port,host:port?...        a cluster, of which any nodes are named
    redis+sentinel://user:password@host:port,host:port/service/db?...    who is primary, the sentinels named say

No text of a URL is repeated in an error: it may hold a password.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from .errors import ArgumentError, ArgumentTypeError, NotSupportedError

if TYPE_CHECKING:
    from redis import Redis, RedisCluster

    Client = Union[Redis, RedisCluster]

_SERVER, _CLUSTER, _SENTINEL = "server", "cluster", "sentinel"
_PROTOCOLS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}  # ours -> the library's
_SCHEMES = {
    protocol + (f"+{kind}" if kind != _SERVER else ""): (library, kind)
    for kind in (_SERVER, _CLUSTER, _SENTINEL)
    for protocol, library in _PROTOCOLS.items()
}
_PORTS = {_SERVER: 6379, _CLUSTER: 6379, _SENTINEL: 26379}
_PATHS = {_SERVER: r"(?P<service>)/?(?P<db>\d*)", _CLUSTER: r"(?P<service>)/?(?P<db>)",
          _SENTINEL: r"/(?P<service>[\w.:-]+)/?(?P<db>\d*)"}  # fmt: skip
_FORMS = {_SERVER: "redis://host:port/db", _CLUSTER: "redis+cluster://host:port,host:port",
          _SENTINEL: "redis+sentinel://host:port,host:port/service/db"}  # fmt: skip
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:,\s]*)(?::(?P<port>\d{1,5}))?")
_OURS = ("prefix", "ttl", "timeout", "retries", "max_value", "replicas", "sentinel_password")
_LIBRARYS = re.compile(r"ssl_[a-z_]+|client_name|max_connections|socket_keepalive|protocol")
_IDLE_CHECK = 30  # seconds after which a connection is asked whether it still lives


@dataclass(frozen=True)
class Place:
    """Where a store is: ``name`` is for people and has no password, ``url`` is the library's and may have one."""

    kind: str
    name: str
    url: str  # of the first host
    hosts: list[tuple[str, int]]
    service: str  # what sentinels call it
    ours: dict[str, str]
    secrets: frozenset[str]

    @property
    def needs_a_server_to_begin(self) -> bool:
        """Whether making a client asks for something already."""
        return self.kind == _CLUSTER


def library() -> Any:
    """The ``redis`` package; ``NotSupportedError`` without it."""
    try:
        import redis
        import redis.backoff
        import redis.cluster
        import redis.connection
        import redis.retry
        import redis.sentinel
    except ImportError:
        raise NotSupportedError(
            "[RedisStore] redis: the package is not installed; install it with: pip install 'kvtrie[store]'"
        ) from None
    return redis


def read_url(url: str) -> Place:
    """The parts of a URL. Raises ``ArgumentError`` for one that cannot be used."""
    if not isinstance(url, str):
        raise ArgumentTypeError(f"[RedisStore] url: got {type(url).__name__}, allowed str")
    if any("\ud800" <= letter <= "\udfff" for letter in url):
        raise ArgumentError(
            "[RedisStore] url: got a str with lone surrogates, allowed text that can be written as UTF-8"
        )
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES or "://" not in url:
        allowed = ", ".join(f"{name}://" for name in _PROTOCOLS)
        raise ArgumentError(
            f"[RedisStore] url: got another scheme, allowed {allowed} and each with +cluster or +sentinel"
        )
    protocol, kind = _SCHEMES[scheme]
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ArgumentError(f"[RedisStore] url: got a host or port that is none, allowed {_FORMS[kind]}") from None
    path = re.fullmatch(_PATHS[kind], parts.path)
    if parts.fragment or "@" in parts.path + parts.query or path is None:
        raise ArgumentError(
            f"[RedisStore] url: got something else than a database number behind the host, allowed {_FORMS[kind]} "
            "with '/', '?', '#' and '@' percent-encoded in a password and in options"
        )
    user, _, after = parts.netloc.rpartition("@")
    hosts = _read_hosts(after, kind)
    ours, librarys = _read_options(parts.query, kind)
    secrets = {user.partition(":")[2], ours.get("sentinel_password", "")}
    secrets |= {unquote(text) for text in secrets} | {quote(text, safe="") for text in secrets}
    number = path["db"] or "0"
    behind = "" if kind == _CLUSTER else "/".join(["", path["service"], number] if path["service"] else ["", number])
    host, port = hosts[0]
    return Place(
        kind=kind,
        name=f"{scheme}://{','.join(f'{_bracketed(host)}:{port}' for host, port in hosts)}{behind}",
        url=f"{protocol}://{user + '@' if user else ''}{_bracketed(host)}:{port}/{number}?{urlencode(librarys)}",
        hosts=hosts,
        service=path["service"],
        ours=ours,
        secrets=frozenset(text for text in secrets if text),
    )


def number(
    options: Mapping[str, str], name: str, default: float, least: float, most: float, whole: bool = False
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


def check(place: Place) -> None:
    """Raises ``ValueError`` for an option that the library cannot read."""
    library().connection.parse_url(place.url)


def make_clients(place: Place, timeout: float, replicas: bool) -> tuple[Client, Client]:
    """One that writes and one that reads; both are the same but for a service of sentinels with ``replicas``.

    They try nothing again by themselves. A cluster is asked for its nodes here.
    """
    redis = library()
    settings: dict[str, object] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        "health_check_interval": _IDLE_CHECK,
        "decode_responses": False,
    }
    if place.kind == _SERVER:
        client = redis.Redis.from_url(place.url, **settings)
        return client, client
    if place.kind == _CLUSTER:
        nodes = [redis.cluster.ClusterNode(host.strip("[]"), port) for host, port in place.hosts[1:]]
        strategy = redis.cluster.LoadBalancingStrategy.ROUND_ROBIN if replicas else None
        client = redis.RedisCluster.from_url(
            place.url, startup_nodes=nodes, load_balancing_strategy=strategy, **settings
        )
        return client, client
    return _make_clients_of_service(place, settings, replicas)


def _make_clients_of_service(place: Place, settings: dict[str, object], replicas: bool) -> tuple[Client, Client]:
    redis = library()
    given = redis.connection.parse_url(place.url)
    secured = given.pop("connection_class", None) is not None
    for name in ("host", "port"):
        given.pop(name, None)
    if secured:
        settings["ssl"] = True
    of_sentinels = {name: value for name, value in given.items() if name.startswith("ssl_")}
    if "sentinel_password" in place.ours:
        of_sentinels["password"] = place.ours["sentinel_password"]
    sentinel = redis.sentinel.Sentinel(place.hosts, sentinel_kwargs={**settings, **of_sentinels}, **settings, **given)
    writer = sentinel.master_for(place.service)
    return writer, sentinel.slave_for(place.service) if replicas else writer


def _read_hosts(text: str, kind: str) -> list[tuple[str, int]]:
    found = [_HOST.fullmatch(each) for each in text.split(",")]
    hosts = [(each["host"].strip("[]") or "localhost", int(each["port"] or _PORTS[kind])) for each in found if each]
    if len(hosts) < len(found) or any(port > 65535 for _, port in hosts):
        raise ArgumentError(f"[RedisStore] url: got a host or port that is none, allowed {_FORMS[kind]}")
    if kind == _SERVER and len(hosts) > 1:
        raise ArgumentError(
            f"[RedisStore] url: got {len(hosts)} hosts, allowed one, or several of {_FORMS[_CLUSTER]} and "
            f"{_FORMS[_SENTINEL]}"
        )
    return hosts


def _read_options(query: str, kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """Ours, and those of the library."""
    ours: dict[str, str] = {}
    librarys: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ours or name in librarys:
            raise ArgumentError(f"[RedisStore] {name}: got it twice, allowed once")
        if name in _OURS:
            ours[name] = value
        elif _LIBRARYS.fullmatch(name):
            librarys[name] = value
        else:
            raise ArgumentError(
                f"[RedisStore] url: got option {name!r}, allowed {', '.join(_OURS)}, ssl_..., client_name, "
                "max_connections, socket_keepalive, protocol"
            )
    if kind == _SERVER and "replicas" in ours:
        raise ArgumentError(f"[RedisStore] replicas: got it for one server, allowed with {_CLUSTER} and {_SENTINEL}")
    if kind != _SENTINEL and "sentinel_password" in ours:
        raise ArgumentError(f"[RedisStore] sentinel_password: got it without sentinels, allowed with {_SENTINEL}")
    return ours, librarys


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
