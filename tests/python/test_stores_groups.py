"""Stores of several servers: clusters, a primary that is replaced, replicas that are read, TLS with passwords."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import pytest

import kvtrie as kv
from fakes import CodingModel, make_cache, run
from kvtrie import _redis
from kvtrie.errors import StoreError
from kvtrie.stores import RedisStore
from processes import PATIENCE
from redis_groups import Certificates, Cluster, Watched, client_of, cluster, watched
from redis_server import SECRET, started

TOKENS = [(7 * i) % 1000 for i in range(6 * 256 + 100)]
VALUES = {f"kvtrie:1:b:{i:064x}": bytes([i]) * (1000 + i) for i in range(60)}


def eventually(work: Callable[[], Any], wanted: Callable[[Any], bool]) -> None:
    """Until the servers have settled it among themselves: calls may fail until then, and be misses."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if wanted(work()):
                return
        except StoreError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def shared(store: Any, **options: Any) -> kv.PrefixCache:
    return make_cache(device="host", store=store, fingerprint="weights", host_bytes="8MiB", capacity=4096, **options)


def reused_by_another(url: str) -> tuple[int, str]:
    """What a second cache on the store has of a prompt that a first one computed."""
    with shared(url, store_deadline=None) as cache:
        run(cache, TOKENS, CodingModel())
        assert cache.flush()
    with shared(url, store_deadline=None) as cache:
        session = run(cache, [*TOKENS, 1], CodingModel())
        return session.reused, session.tier


# ---- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), primaries=3, password=SECRET) as nodes:
        yield nodes


@pytest.fixture
def three(nodes_of_all: Cluster) -> Cluster:
    """A cluster in which there is nothing, and whose nodes all tests share: none is killed."""
    for node in nodes_of_all.nodes:
        client_of(node).flushall()
    return nodes_of_all


def test_a_cluster_is_one_store(three: Cluster) -> None:
    writer, reader = RedisStore(three.url("ttl=60&timeout=120")), RedisStore(three.url("timeout=120", named=[2]))
    for key, value in VALUES.items():
        writer.put(key, value)
    assert all(count > 0 for count in three.counts()), "keys lie where their hashes say"
    assert sum(three.counts()) == len(VALUES)
    asked = ["absent", *VALUES, "absent too"]
    assert reader.get_many(asked) == [None, *VALUES.values(), None]
    assert reader.get_many(asked, most=1010, seconds=PATIENCE)[:13] == [None, *list(VALUES.values())[:11], None]
    assert [reader.get(key) for key in asked[:3]] == [None, *list(VALUES.values())[:2]]
    for key in VALUES:
        reader.delete(key)
    assert three.counts() == [0, 0, 0]
    assert SECRET not in repr(writer) + writer.name
    assert writer.name.startswith("redis+cluster://127.0.0.1:")
    writer.close()
    writer.put("again", b"x")
    assert reader.get("again") == b"x"


def test_prefix_caches_share_through_a_cluster(three: Cluster) -> None:
    assert reused_by_another(three.url("timeout=120&prefix=kv:")) == (len(TOKENS), "store")
    assert all(count > 0 for count in three.counts())


def test_the_keys_of_a_call_are_asked_for_in_one_round_trip_of_each_node(three: Cluster) -> None:
    store = RedisStore(three.url("timeout=120"))
    for key, value in VALUES.items():
        store.put(key, value)

    def reads() -> list[int]:
        """How often each node woke up for something to read."""
        return [int(client_of(node).info("stats")["total_reads_processed"]) for node in three.nodes]

    quiet = reads()
    own = [after - before for before, after in zip(quiet, reads())]
    before = reads()
    assert store.get_many(list(VALUES)) == list(VALUES.values())
    taken = [after - start - each for start, after, each in zip(before, reads(), own)]
    assert all(each < 15 for each in taken), "not one for each of twenty keys; nodes talk to each other as well"


@pytest.mark.ci
def test_a_cluster_without_one_of_its_nodes_misses_and_comes_back(tmp_path: Path) -> None:
    with cluster(tmp_path, primaries=3, password=SECRET) as three:
        url = three.url("timeout=120&retries=0")
        store = RedisStore(url)
        for key, value in VALUES.items():
            store.put(key, value)
        three.nodes[0].kill()
        for key, value in VALUES.items():
            with suppress(StoreError):
                assert store.get(key) in (value, None)
        with shared(url) as cache:
            assert run(cache, TOKENS, CodingModel()).reused == 0
        three.nodes[0].start()
        eventually(lambda: store.get_many(list(VALUES)), lambda found: any(found) and not all(found))


@pytest.mark.ci
def test_a_replica_takes_the_place_of_a_primary(tmp_path: Path) -> None:
    with cluster(tmp_path, primaries=3, replicas=1, password=SECRET) as nodes:
        store = RedisStore(nodes.url("timeout=120&retries=2"))
        for key, value in VALUES.items():
            store.put(key, value)
        replica = client_of(nodes.nodes[3])
        eventually(lambda: int(replica.dbsize()) == nodes.counts()[0], bool)
        nodes.nodes[0].kill()
        eventually(lambda: store.get_many(list(VALUES)), lambda found: found == list(VALUES.values()))
        for key in VALUES:
            store.put(key, b"new")
        assert set(store.get_many(list(VALUES))) == {b"new"}


@pytest.mark.ci
def test_replicas_are_read_where_that_is_wanted(tmp_path: Path) -> None:
    with cluster(tmp_path, primaries=3, replicas=3, password=SECRET) as nodes:
        store = RedisStore(nodes.url("timeout=120&replicas=1"))
        for key, value in VALUES.items():
            store.put(key, value)

        def asked() -> list[int]:
            found = [client_of(node).info("commandstats") for node in nodes.nodes]
            return [int(each.get("cmdstat_getrange", {"calls": 0})["calls"]) for each in found]

        eventually(lambda: store.get_many(list(VALUES)), lambda found: found == list(VALUES.values()))
        before = asked()
        for _ in range(4):
            store.get_many(list(VALUES))
        taken = [after - start for start, after in zip(before, asked())]
        assert sum(taken[3:]) > 0, "some were answered by replicas"
        assert sum(taken[:3]) > 0


# ---- sentinels -------------------------------------------------------------------------------------------------------


def test_sentinels_say_who_is_primary(tmp_path: Path) -> None:
    with watched(tmp_path, SECRET) as servers:
        store = RedisStore(servers.url("timeout=120&retries=2"))
        reader = RedisStore(servers.url("timeout=120&retries=2&replicas=1"))
        assert store.name == f"redis+sentinel://127.0.0.1:{servers.sentinel_port}/{Watched.SERVICE}/0"
        eventually(lambda: store.put("key", b"value") or store.get("key"), lambda found: found == b"value")

        def answered_by_the_replica() -> bool:
            commands = client_of(servers.replica).info("commandstats")
            return reader.get("key") == b"value" and "cmdstat_getrange" in commands

        eventually(answered_by_the_replica, bool)  # not while the sentinel takes it for one that is down
        servers.primary.kill()
        eventually(lambda: store.put("key", b"newer") or store.get("key"), lambda found: found == b"newer")
        assert client_of(servers.replica).role()[0] == b"master"
        eventually(lambda: reader.get("key"), lambda found: found == b"newer")
        assert SECRET not in store.name + repr(reader)


# ---- TLS -------------------------------------------------------------------------------------------------------------


def test_tls_with_a_password(tmp_path: Path) -> None:
    ours, foreign = Certificates(tmp_path / "ours"), Certificates(tmp_path / "foreign")
    (tmp_path / "server").mkdir()
    server = started(tmp_path / "server", SECRET, *ours.settings(), tls=True)
    try:
        options = f"timeout=120&retries=0&ssl_ca_certs={ours.authority}"
        store = RedisStore(server.url(options))
        store.put("key", b"value")
        assert store.get_many(["key", "absent"], seconds=PATIENCE) == [b"value", None]
        assert reused_by_another(server.url(options).replace("rediss", "valkeys")) == (len(TOKENS), "store")
        for url in (
            server.url(f"timeout=120&retries=0&ssl_ca_certs={foreign.authority}"),
            server.url("timeout=120&retries=0"),
            server.url(options, password="wr0ng"),
            server.url(options).replace("rediss", "redis").replace(f"&ssl_ca_certs={ours.authority}", ""),
        ):
            with pytest.raises(StoreError) as refused:
                RedisStore(url).get("key")
            assert SECRET not in str(refused.value) and "wr0ng" not in str(refused.value)
    finally:
        server.kill()


# ---- what URLs say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name", "hosts"),
    [
        ("redis+cluster://a:1,b:2,c", "redis+cluster://a:1,b:2,c:6379", [("a", 1), ("b", 2), ("c", 6379)]),
        ("valkeys+cluster://u:p@[::1]:7", "valkeys+cluster://[::1]:7", [("::1", 7)]),
        ("redis+sentinel://a,b:5/main", "redis+sentinel://a:26379,b:5/main/0", [("a", 26379), ("b", 5)]),
        ("rediss+sentinel://:x@a/the.store-1/3", "rediss+sentinel://a:26379/the.store-1/3", [("a", 26379)]),
        ("redis://", "redis://localhost:6379/0", [("localhost", 6379)]),
    ],
)
def test_urls_name_hosts(url: str, name: str, hosts: list[tuple[str, int]]) -> None:
    place = _redis.read_url(url)
    assert (place.name, place.hosts) == (name, hosts)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://a,b/0", r"got 2 hosts, allowed one, or several of redis\+cluster"),
        ("redis+cluster://a,b/0", r"got something else .* allowed redis\+cluster://host:port,host:port"),
        ("redis+cluster://a,,b", None),
        ("redis+cluster://a:70000", "got a host or port that is none"),
        ("redis+cluster://a b", "got a host or port that is none"),
        ("redis+sentinel://a", r"allowed redis\+sentinel://host:port,host:port/service/db"),
        ("redis+sentinel://a/x/y", r"allowed redis\+sentinel://host:port,host:port/service/db"),
        ("redis+other://a", r"got another scheme, allowed redis://, .* each with \+cluster or \+sentinel"),
        ("redis://a?replicas=1", "replicas: got it for one server, allowed with cluster and sentinel"),
        ("redis+cluster://a?replicas=2", "replicas: got '2', allowed a whole number from 0 to 1"),
        ("redis+cluster://a?sentinel_password=x", "sentinel_password: got it without sentinels"),
        ("redis+cluster://a?ssl_cert_reqs=x&max_connections=many", "Invalid value for 'max_connections'"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(url: str, message: str | None) -> None:
    if message is None:
        assert RedisStore(url).name == "redis+cluster://a:6379,localhost:6379,b:6379"
        return
    with pytest.raises(kv.errors.ArgumentError, match=message):
        RedisStore(url)


def test_no_password_of_a_group_is_shown() -> None:
    store = RedisStore("redis+sentinel://u:pass%2Fword@a,b/main?sentinel_password=other%2Fsecret")
    seen = store._without_secret(ValueError("pass/word pass%2Fword other/secret other%2Fsecret")) + repr(store)
    assert "pass" not in seen and "other" not in seen and "secret" not in seen
