"""Prefix caches that share a store: a real server between two processes, one that dies, and objects of one's own."""

from __future__ import annotations

import gc
import json
import threading
import time
from typing import Any, Optional

import pytest

import kvtrie as kv
from circles import SOAK
from fakes import CodingModel, compute, make_cache, run
from kvtrie.stores import RedisStore
from processes import PATIENCE, run_python
from redis_server import SECRET, RedisServer

pytestmark = pytest.mark.usefixtures("nothing_left_over")
TURNS, CLIENTS = (8, 4) if SOAK else (4, 2)
TOKENS = [(7 * i) % 1000 for i in range(900)]
PATIENT = f"timeout={PATIENCE}"  # of a server's URL: answers come, however busy the machine is


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


# Unless a test says otherwise, its deadline is beyond what a busy machine needs.
OPTIONS: dict[str, Any] = {
    "fingerprint": "weights", "host_bytes": "8MiB", "capacity": 4096, "store_deadline": PATIENCE
}  # fmt: skip


def shared(store: Any, device: Any = "host", **options: Any) -> kv.PrefixCache:
    return make_cache(device=device, store=store, **{**OPTIONS, **options})


# A process of its own: what it reused and from where. Every K and V that its model sees is compared.
OTHER = """
import json, sys
import fakes, kvtrie as kv
url, tokens, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with fakes.make_cache(device="host", store=url, **options) as cache:
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
    done = program(OTHER, url, json.dumps(tokens), json.dumps(OPTIONS))
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# ---- two processes ---------------------------------------------------------------------------------------------------


def test_two_processes_on_one_server_reuse_each_others_prefixes(server: RedisServer) -> None:
    url = server.url(f"prefix=kv:&{PATIENT}").replace("redis://", "valkey://")
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
    with shared(server.url(PATIENT), device=device) as cache:
        run(cache, TOKENS, CodingModel())
        assert cache.flush()
    with shared(server.url(PATIENT), device=device) as cache:
        session = run(cache, [*TOKENS, 1], CodingModel())
        assert (session.reused, session.tier) == (len(TOKENS), "store")


def test_namespaces_and_models_share_nothing(server: RedisServer) -> None:
    with shared(server.url(PATIENT)) as cache:
        run(cache, TOKENS, CodingModel(), "alice")
    with shared(server.url(PATIENT)) as cache:
        assert run(cache, TOKENS, CodingModel(), "bob").reused == 0
        assert run(cache, TOKENS, CodingModel(), "alice").reused == len(TOKENS) - 1
    with shared(server.url(PATIENT), fingerprint="weights2") as cache:
        assert run(cache, TOKENS, CodingModel(), "alice").reused == 0


# ---- a server that dies ----------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_server_that_dies_in_the_middle_costs_only_what_it_had(server: RedisServer) -> None:
    seconds = 0.0
    url = server.url(f"{PATIENT}&retries=0")
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


@pytest.mark.ci
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


class Pipelined(Shelf):
    """Answers many keys at once; each call that reads moves the clock on."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.now, self.seconds = 0.0, seconds
        self.calls: list[int] = []  # of `get_many`: for how many keys
        self.others = 0
        self.left: list[Optional[float]] = []

    def get(self, key: str) -> Optional[bytes]:
        self.others += 1
        self.now += self.seconds
        return super().get(key)

    def put(self, key: str, value: bytes) -> None:
        self.others += 1
        super().put(key, value)

    def get_many(self, keys: list[str], most: int, seconds: Optional[float]) -> list[Optional[bytes]]:
        self._may_fail()
        self.now += self.seconds
        self.calls.append(len(keys))
        self.left.append(seconds)
        return [self.values.get(key) for key in keys]


MANY = [(11 * i) % 3000 for i in range(16 * 256 + 40)]


def filled(shelf: Any, tokens: list[int]) -> Any:
    with shared(shelf, capacity=8192) as cache:
        run(cache, tokens, CodingModel(check=False))
        assert cache.flush()
    return shelf


def test_sixteen_blocks_are_asked_for_in_few_round_trips() -> None:
    shelf = filled(Pipelined(), MANY)
    shelf.calls.clear()
    with shared(shelf, capacity=8192) as cache:
        session = cache.begin([*MANY, 1])
        assert (session.reused, session.tier) == (len(MANY), "store")
        assert sum(shelf.calls) == 16 + 2 and len(shelf.calls) <= 5, "groups of blocks; an index and the last tokens"


def test_each_call_of_the_store_is_counted_once() -> None:
    shelf = Pipelined()
    with shared(shelf, capacity=8192) as cache:
        run(cache, MANY, CodingModel(check=False))
        assert cache.flush(), "now nothing goes on behind"
        assert cache.stats()["store"]["calls"] == len(shelf.calls) + shelf.others > 16


# ---- one deadline ----------------------------------------------------------------------------------------------------


class OneByOne(Pipelined):
    """The same without a way to ask for several."""

    get_many = None  # type: ignore[assignment]


@pytest.mark.parametrize("call", ["begin", "restore"])
def test_a_slow_store_has_one_deadline_for_a_whole_begin(call: str) -> None:
    shelf = filled(OneByOne(), MANY)
    shelf.seconds = 0.5
    default = {name: value for name, value in OPTIONS.items() if name != "store_deadline"}
    with make_cache(device="host", store=shelf, clock=lambda: shelf.now, **{**default, "capacity": 8192}) as cache:
        if call == "begin":  # and nothing is computed, so that nothing reads an index behind
            assert cache.begin(MANY).reused == 4 * 256, "four blocks came in two seconds"
        else:
            assert cache.restore(MANY) == 4 * 256
        assert shelf.now == 2.0
        assert cache.stats()["store"]["late"] > 0
        assert cache.stats()["store"]["failures"] == 0
        assert cache.check() == []
    with shared(shelf, capacity=8192, clock=lambda: shelf.now, store_deadline=100.0) as cache:
        assert run(cache, MANY, CodingModel()).reused == len(MANY) - 1
    with shared(shelf, capacity=8192, clock=lambda: shelf.now, store_deadline=None) as cache:
        assert run(cache, MANY, CodingModel()).reused == len(MANY) - 1


def test_each_call_is_told_what_time_is_left() -> None:
    shelf = filled(Pipelined(), MANY)
    shelf.seconds = 0.5
    shelf.left.clear()
    with shared(shelf, capacity=8192, clock=lambda: shelf.now, store_deadline=10.0) as cache, cache.begin(MANY):
        assert shelf.left == [10.0 - 0.5 * i for i in range(len(shelf.left))]


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan")])
def test_a_deadline_is_in_the_future(deadline: float) -> None:
    with pytest.raises(kv.errors.ArgumentError, match="store_deadline"):
        shared(Shelf(), store_deadline=deadline)


def test_a_stalled_server_costs_the_deadline_and_no_timeout(server: RedisServer) -> None:
    url = server.url(f"{PATIENT}&retries=5")
    with shared(url) as cache:
        run(cache, TOKENS, CodingModel())
        assert cache.flush()
    with shared(url, store_deadline=0.3) as cache:
        server.freeze()
        start = time.monotonic()
        assert run(cache, TOKENS, CodingModel()).reused == 0
        assert time.monotonic() - start < PATIENCE / 2, "not when the server's time is"
        server.thaw()
        cache.flush()


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
    with pytest.raises(kv.errors.ArgumentError, match="fingerprint"):
        shared(Shelf(), fingerprint="")
    with pytest.raises(kv.errors.ArgumentError, match="host_bytes"):
        shared(Shelf(), host_bytes=0)
    with pytest.raises(kv.errors.ArgumentTypeError, match="get"):
        shared(object())
    with shared(None) as cache:
        assert cache.stats()["store"] is None
        with pytest.raises(kv.errors.NotSupportedError, match="store"):
            cache.page_out(TOKENS, to="store")
        with pytest.raises(kv.errors.NotSupportedError, match="store"):
            cache.flush()
    gc.collect()


@pytest.mark.ci
def test_threads_share_one_store() -> None:
    shelf = Shelf()
    caches = [shared(shelf) for _ in range(3)]

    def work(cache: kv.PrefixCache, salt: int) -> None:
        for turn in range(3):
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


# ---- what is worth fetching ------------------------------------------------------------------------------------------


class Timed(Pipelined):
    """A store and a model on one clock: seconds of a call, of a byte that comes, and of a token that is computed."""

    def __init__(self, call: float, byte: float, token: float) -> None:
        super().__init__()
        self.call, self.byte, self.token = call, byte, token

    def get_many(self, keys: list[str], most: int, seconds: Optional[float]) -> list[Optional[bytes]]:
        found = super().get_many(keys, most, seconds)
        self.now += self.call + self.byte * sum(len(value or b"") for value in found)
        return found

    def model(self, step: Any) -> None:
        self.now += self.token * len(step.tokens)  # before the last layer's: then the step is complete
        CodingModel(check=False)(step)


def asked(shelf: Timed, cache: kv.PrefixCache, first: int, length: int) -> int:
    """How many calls a prompt took that no cache knows."""
    before = cache.stats()["store"]["calls"]
    with cache.begin([first + 3000, *MANY[: length - 1]]) as session:
        calls = cache.stats()["store"]["calls"] - before
        compute(session, shelf.model)
    cache.flush()
    return int(calls)


def test_what_is_computed_sooner_is_not_asked_for() -> None:
    shelf = filled(Timed(call=0.1, byte=0.0, token=0.001), MANY)
    with shared(shelf, capacity=16384, clock=lambda: shelf.now, store_deadline=None) as cache:
        assert [asked(shelf, cache, i, 100) for i in range(6)] == [1] * 6, "before it is known"
        stats = cache.stats()
        assert stats["seconds_per_store_call"] == pytest.approx(0.1)
        assert stats["seconds_per_token"] == pytest.approx(0.001)
        assert asked(shelf, cache, 20, 159) == 0, "two calls take 160 tokens, with a margin of a quarter"
        assert cache.stats()["store"]["least_tokens"] == 160
        assert cache.stats()["store"]["not_worth"] >= 1
        assert asked(shelf, cache, 21, 400) > 0
        shelf.now += 100
        assert asked(shelf, cache, 22, 100) > 0, "what it took a while ago is not believed any more"
        assert asked(shelf, cache, 23, 100) == 0
        assert cache.check() == []


def test_a_narrow_way_to_the_store_is_not_taken_for_any_length() -> None:
    shelf = filled(Timed(call=0.001, byte=0.0, token=0.001), MANY)
    shelf.byte = 1e-4  # 128 of them for a token
    for load, reused in (("auto", 0), ("always", len(MANY) - 1)):
        with shared(shelf, capacity=16384, clock=lambda: shelf.now, store_deadline=None, load=load) as cache:
            for turn in range(8):
                cache.evict(MANY)
                if turn < 7:
                    cache.begin(MANY).close()
                asked(shelf, cache, turn, 100)
            cache.evict(MANY)
            with cache.begin(MANY) as session:
                assert session.reused == reused
            if load == "auto":
                assert cache.stats()["store"]["least_tokens"] is None
                assert cache.stats()["seconds_per_byte"]["store"] == pytest.approx(1e-4, rel=0.1)


# ---- eviction, and other versions ------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_server_that_evicts_under_load_makes_misses_and_nothing_wrong(server: RedisServer) -> None:
    url = server.url(PATIENT)
    store = RedisStore(url)
    client = store._client
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + (200 << 10))
    client.config_set("maxmemory-policy", "allkeys-lru")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(TURNS):  # each a process that was just started
                with shared(url, capacity=8192, store_deadline=None) as cache:
                    start = 256 * ((turn + number) % 4)
                    run(cache, [*MANY[start : start + 1500], number, turn], CodingModel())
                    cache.flush()
                    assert cache.check() == []
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert int(client.info("stats")["evicted_keys"]) > 0
    client.config_set("maxmemory", 0)
    store.close()
    unseen = [5, *TOKENS]  # no conversation above begins like this
    assert [another_process(url, unseen)["reused"] for _ in range(2)] == [0, len(unseen) - 1], "none is left behind"


def test_another_version_side_by_side_harms_nothing() -> None:
    """What a later version writes has names of its own; what claims to be ours and is not goes."""
    shelf = filled(Shelf(), TOKENS)
    ours = dict(shelf.values)
    later = {key.replace("kvtrie:1:", "kvtrie:2:"): b"kvtrie.v\2" + value for key, value in ours.items()}
    shelf.values.update(later)
    with shared(shelf) as cache:
        assert run(cache, [*TOKENS, 1], CodingModel()).reused == len(TOKENS)
        assert cache.flush()
        assert cache.stats()["store"]["faults"] == {}
    assert {key: shelf.values[key] for key in later} == later
    assert {key: shelf.values[key] for key in ours if key[9] == "b"} == {k: v for k, v in ours.items() if k[9] == "b"}
    shelf.values = {key: value[:8] + b"\2" + value[9:] for key, value in ours.items()}
    with shared(shelf) as cache:
        assert run(cache, TOKENS, CodingModel()).reused == 0
        assert set(cache.stats()["store"]["faults"]) <= {"version", "checksum"}


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
        "session.close(); del cache, session; assert len(store.values) > 8",
        pytest.param("session.close()", marks=pytest.mark.ci),
        pytest.param("session.close(); cache.close(); assert len(store.values) > 8", marks=pytest.mark.ci),
        pytest.param("session.close(); sys.exit(0)", marks=pytest.mark.ci),
        pytest.param("store.cache = cache; store.session = session; session.close()", marks=pytest.mark.ci),
    ],
)
def test_the_interpreter_ends_well(last: str) -> None:
    done = program(ENDING + last)
    assert (done.returncode, done.stderr) == (0, "")
