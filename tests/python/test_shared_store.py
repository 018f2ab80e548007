"""Prefix caches that share a store: a real server between two processes, one that dies, and objects of one's own."""

from __future__ import annotations

import gc
import json
import threading
import time
from typing import Any, Optional

import pytest

import kvtrie as kv
from fakes import CodingModel, compute, make_cache, run
from processes import PATIENCE, run_python
from redis_server import SECRET, RedisServer

pytestmark = pytest.mark.usefixtures("nothing_left_over")
TOKENS = [(7 * i) % 1000 for i in range(900)]


class Shelf:
    """The smallest store there is."""

    name = "a shelf"

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.failing = False

    def get(self, key: str) -> Optional[bytes]:
        self._may_fail()
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._may_fail()
        self.values[key] = value

    def delete(self, key: str) -> None:
        self._may_fail()
        self.values.pop(key, None)

    def _may_fail(self) -> None:
        if self.failing:
            raise OSError("the shelf fell down")


def shared(store: Any, device: Any = "host", **options: Any) -> kv.PrefixCache:
    options = {"fingerprint": "weights", "host_bytes": "8MiB", "capacity": 4096, **options}
    return make_cache(device=device, store=store, **options)


# A process of its own: what it reused and from where. Every K and V that its model sees is compared.
OTHER = """
import json, sys
import fakes, kvtrie as kv
url, tokens = sys.argv[1], json.loads(sys.argv[2])
with fakes.make_cache(device="host", store=url, fingerprint="weights", host_bytes="8MiB", capacity=4096) as cache:
    model = fakes.CodingModel()
    session = fakes.run(cache, tokens, model)
    assert cache.flush()
    assert cache.check() == [], cache.check()
    stats = cache.stats()["store"]
    print(json.dumps({"reused": session.reused, "tier": session.tier, "moved": session.bytes_moved, "rows": model.rows,
                      "sent": stats["sent"], "unsent": stats["unsent"], "received": stats["received"]}))
"""


def program(text: str, *arguments: str) -> Any:
    return run_python("-c", text, *arguments)


def another_process(url: str, tokens: list[int]) -> dict[str, Any]:
    done = program(OTHER, url, json.dumps(tokens))
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# ---- two processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_two_processes_on_one_server_reuse_each_others_prefixes(server: RedisServer, scheme: str) -> None:
    url = server.url("prefix=kv:").replace("redis://", f"{scheme}://")
    first = another_process(url, TOKENS)
    assert (first["reused"], first["tier"], first["unsent"]) == (0, "none", 0)
    second = another_process(url, [*TOKENS, 5, 6, 7])
    assert (second["reused"], second["tier"]) == (len(TOKENS), "store")
    assert second["rows"] == 3
    assert second["moved"] > 0
    assert second["received"] == 4, "three blocks and what lies behind them"
    third = another_process(url, TOKENS[:700])
    assert (third["reused"], third["tier"]) == (699, "store")
    assert another_process(url, TOKENS[:600] + [1, 2, 3] * 100)["reused"] == 600, "it parts inside a block"


def test_what_a_process_on_the_device_sent_is_found_there(server: RedisServer, device: Any) -> None:
    with shared(server.url(), device=device) as cache:
        run(cache, TOKENS, CodingModel())
        assert cache.flush()
    with shared(server.url(), device=device) as cache:
        session = run(cache, [*TOKENS, 1], CodingModel())
        assert (session.reused, session.tier) == (len(TOKENS), "store")


def test_namespaces_and_models_share_nothing(server: RedisServer) -> None:
    with shared(server.url()) as cache:
        run(cache, TOKENS, CodingModel(), "alice")
    with shared(server.url()) as cache:
        assert run(cache, TOKENS, CodingModel(), "bob").reused == 0
        assert run(cache, TOKENS, CodingModel(), "alice").reused == len(TOKENS) - 1
    with shared(server.url(), fingerprint="weights2") as cache:
        assert run(cache, TOKENS, CodingModel(), "alice").reused == 0


# ---- a server that dies ----------------------------------------------------------------------------------------------


def test_a_server_that_dies_in_the_middle_costs_only_what_it_had(server: RedisServer) -> None:
    seconds = 0.0
    url = server.url("timeout=20&retries=0")
    with shared(url, clock=lambda: seconds) as cache:
        run(cache, TOKENS, CodingModel())
        assert cache.flush()
        server.kill()
        for first in range(4):
            assert run(cache, [first + 2000, *TOKENS], CodingModel()).reused == 0
            cache.flush()
        stats = cache.stats()["store"]
        assert stats["state"] == "open"
        assert stats["unsent"] > 0
        assert SECRET not in stats["last_failure"]
        assert run(cache, [3000, *TOKENS], CodingModel()).reused == 0
        assert cache.stats()["store"]["failures"] == stats["failures"], "it is left alone now"
        assert not cache.flush()
        server.restart()
        seconds = 60.0
        assert run(cache, [4000, *TOKENS], CodingModel()).reused == 0
        assert cache.flush()
        stats = cache.stats()["store"]
        assert (stats["state"], stats["opened"]) == ("closed", 1)
        assert cache.check() == []
    assert another_process(url, [4000, *TOKENS, 1])["reused"] == len(TOKENS) + 1


def test_a_server_that_hangs_costs_its_timeouts(server: RedisServer) -> None:
    with shared(server.url("timeout=0.2&retries=0"), clock=lambda: 0.0) as cache:
        run(cache, TOKENS, CodingModel())
        cache.flush()
        server.freeze()
        for first in range(4):
            assert run(cache, [first + 2000, *TOKENS], CodingModel(check=False)).reused == 0
        store = cache.stats()["store"]
        assert (store["state"], store["opened"]) == ("open", 1)
        assert store["failures"] < 10, "it is left alone now"
        server.thaw()


# ---- objects of one's own --------------------------------------------------------------------------------------------


def test_a_dict_behind_three_methods_is_a_store() -> None:
    shelf = Shelf()
    with shared(shelf) as cache:
        run(cache, TOKENS, CodingModel())
        assert cache.flush()
        assert cache.stats()["store"]["name"] == "a shelf"
        assert cache.stats()["store"]["sent"] == 4
    with shared(shelf) as cache:
        session = run(cache, TOKENS, CodingModel())
        assert (session.reused, session.tier) == (len(TOKENS) - 1, "store")
        assert cache.plan([*TOKENS, 1]).reusable == len(TOKENS)
        assert cache.check() == []


def test_damage_is_a_miss_and_goes() -> None:
    shelf = Shelf()
    with shared(shelf) as cache:
        run(cache, TOKENS, CodingModel())
    before = len(shelf.values)
    shelf.values = {key: value[:-1] + bytes([value[-1] ^ 1]) for key, value in shelf.values.items()}
    with shared(shelf) as cache:
        with cache.begin(TOKENS) as session:  # nothing is sent, and so no index read, before something is computed
            assert session.reused == 0
            assert cache.stats()["store"]["faults"] == {"checksum": 2}, "a block and an index were asked for"
            compute(session, CodingModel())
        assert cache.flush()
    assert len(shelf.values) == before
    with shared(shelf) as cache:
        assert run(cache, TOKENS, CodingModel()).reused == len(TOKENS) - 1


def test_a_failing_object_never_raises_through_the_cache() -> None:
    shelf = Shelf()
    shelf.failing = True
    with shared(shelf) as cache:
        assert run(cache, TOKENS, CodingModel()).reused == 0
        deadline = time.monotonic() + PATIENCE
        while cache.stats()["store"]["unsent"] == 0:  # in the background, and long before somebody asks
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert not cache.flush()
        assert cache.flush(), "nothing was lost since"
        assert cache.stats()["store"]["last_failure"].endswith("the shelf fell down")


def test_page_out_to_the_store_sends_what_another_one_takes() -> None:
    shelf, seconds = Shelf(), 0.0
    with shared(shelf, clock=lambda: seconds) as cache:
        shelf.failing = True
        run(cache, TOKENS, CodingModel())
        cache.flush()
        shelf.failing = False
        seconds = 10.0
        assert cache.page_out(TOKENS, to="store") > 0
        assert cache.stats()["device_tokens"] == 0
        assert cache.stats()["host_tokens"] == len(TOKENS)
        with shared(shelf) as other:
            assert other.restore(TOKENS) == len(TOKENS)


def test_it_needs_a_fingerprint_a_host_tier_and_a_store() -> None:
    with pytest.raises(kv.ArgumentError, match="fingerprint"):
        shared(Shelf(), fingerprint="")
    with pytest.raises(kv.ArgumentError, match="host_bytes"):
        shared(Shelf(), host_bytes=0)
    with pytest.raises(kv.ArgumentTypeError, match="get"):
        shared(object())
    with shared(None) as cache:
        assert cache.stats()["store"] is None
        with pytest.raises(kv.NotSupported, match="store"):
            cache.page_out(TOKENS, to="store")
        with pytest.raises(kv.NotSupported, match="store"):
            cache.flush()
    gc.collect()


def test_threads_share_one_store() -> None:
    shelf = Shelf()
    caches = [shared(shelf) for _ in range(3)]

    def work(cache: kv.PrefixCache, salt: int) -> None:
        for turn in range(4):
            run(cache, [*TOKENS[: 300 * (turn % 3 + 1)], salt, turn], CodingModel())

    threads = [threading.Thread(target=work, args=(cache, i)) for i, cache in enumerate(caches * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    for cache in caches:
        cache.flush()
        assert cache.check() == []
        cache.close()


# ---- how the interpreter ends ----------------------------------------------------------------------------------------

ENDING = """
import sys, time
import fakes, kvtrie as kv
class Slow:
    def __init__(self): self.values = {}
    def get(self, key): return self.values.get(key)
    def put(self, key, value): time.sleep(0.05); self.values[key] = value
    def delete(self, key): self.values.pop(key, None)
store = Slow()
cache = fakes.make_cache(device="host", store=store, fingerprint="weights", host_bytes="8MiB", capacity=4096)
session = cache.begin(list(range(2000)))
fakes.compute(session, fakes.CodingModel(check=False))
"""


@pytest.mark.parametrize(
    "last",
    [
        "",
        "session.close()",
        "session.close(); cache.close(); assert len(store.values) > 8",
        "session.close(); del cache, session; assert len(store.values) > 8",
        "session.close(); sys.exit(0)",
        "store.cache = cache; store.session = session; session.close()",
    ],
)
def test_the_interpreter_ends_well(last: str) -> None:
    done = program(ENDING + last)
    assert (done.returncode, done.stderr) == (0, "")
