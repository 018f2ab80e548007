"""Shared stores: the Redis client against a real server, Python objects as stores of the core, and both together."""

from __future__ import annotations

import gc
import pickle
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

import kvtrie as kv
from kvtrie import _core, stores
from kvtrie.errors import StoreError
from kvtrie.stores import RedisStore, open_store
from processes import PATIENCE, run_python
from redis_server import SECRET, PortTakenError, RedisServer

KEY = "kvtrie:1:b:" + "0" * 64
BOUNDED = 120.0  # seconds, for a few tries of half a second on a machine that is busy with something else


class BlackHole:
    """A server that accepts every connection and never says a word."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections: list[socket.socket] = []


@pytest.fixture
def black_hole() -> Iterator[BlackHole]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)

        hole = BlackHole(int(listener.getsockname()[1]))

        def accept() -> None:
            try:
                while True:
                    hole.connections.append(listener.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield hole
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in hole.connections:
        connection.close()


def until(done: Callable[[], bool]) -> bool:
    """Waits for what other threads, processes or clocks bring about."""
    deadline = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    return done()


def patient(server: RedisServer, options: str = "") -> str:
    """The URL of a server that answers, however busy the machine is."""
    return server.url(f"timeout={PATIENCE}" + (f"&{options}" if options else ""))


def seconds_to_fail(work: Callable[[], object]) -> float:
    start = time.monotonic()
    with pytest.raises(StoreError):
        work()
    return time.monotonic() - start


def test_a_server_is_not_taken_for_another_one_on_its_port(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = RedisServer(tmp_path / "other")
    other.port = server.port
    with pytest.raises(PortTakenError):
        other.start()


# ---- the client ------------------------------------------------------------------------------------------------------


def test_two_clients_share_what_is_stored(server: RedisServer) -> None:
    a, b = RedisStore(patient(server)), RedisStore(patient(server).replace("redis://", "valkey://"))
    for value in (b"\0", b"some bytes", bytes(range(256)) * 4096):
        a.put(KEY, value)
        assert b.get(KEY) == value
    b.delete(KEY)
    assert a.get(KEY) is None
    a.delete(KEY)
    a.put(KEY, b"")
    assert b.get(KEY) is None, "an empty one is as none"
    assert RedisStore(patient(server, "prefix=other:")).get(KEY) is None
    a.close()
    b.close()


def test_a_store_that_nobody_has_closes_its_connections(server: RedisServer) -> None:
    """The collector would come to the sockets in an order of its own, and each that comes first warns."""
    gc.disable()
    try:
        for closed in (False, True):
            store = RedisStore(patient(server))
            store.put(KEY, b"value")
            store._client.circle = store._client  # as tracebacks make them
            (connection,) = store._client.connection_pool._available_connections
            assert connection.is_connected
            if closed:
                store.close()
                assert not connection.is_connected
                assert store.get(KEY) == b"value"  # on a new one
                store._client.circle = store._client
                (connection,) = store._client.connection_pool._available_connections
            del store
            assert not connection.is_connected
    finally:
        gc.enable()


def test_a_prefix_keeps_users_of_one_server_apart(server: RedisServer) -> None:
    a, b, plain = (RedisStore(patient(server, options)) for options in ("prefix=a:", "prefix=b:", ""))
    a.put(KEY, b"of a")
    assert b.get(KEY) is None and plain.get(KEY) is None and a.get(KEY) == b"of a"
    assert plain.get("a:" + KEY) == b"of a"
    b.delete(KEY)
    assert a.get(KEY) == b"of a"


TIMES = {"short": "ttl=0.5", "never": "ttl=0", "long": "ttl=7200.5", "default": ""}


def test_values_go_after_their_time_to_live(server: RedisServer) -> None:
    urls = {name: patient(server, options) for name, options in TIMES.items()}
    stores = {name: RedisStore(url) for name, url in urls.items()}
    for name, store in stores.items():
        store.put(name, b"value")
    client = stores["never"]._client
    assert 80_000_000 < client.pttl("default") <= 86_400_000
    assert 6_000_000 < client.pttl("long") <= 7_200_500
    assert client.pttl("never") == -1
    assert until(lambda: stores["short"].get("short") is None)
    assert [name for name, store in stores.items() if store.get(name) == b"value"] == ["never", "long", "default"]


def test_values_beyond_the_cap_are_refused_and_not_fetched(server: RedisServer) -> None:
    wide, narrow = RedisStore(patient(server)), RedisStore(patient(server, "max_value=1024"))
    narrow.put("fits", b"x" * 1024)
    assert narrow.get("fits") == b"x" * 1024
    with pytest.raises(kv.errors.ArgumentError, match=r"value: got 1025 bytes, allowed 1024"):
        narrow.put("large", b"x" * 1025)
    wide.put("large", b"x" * (64 << 20 >> 2))
    before = narrow._client.info("stats")["total_net_output_bytes"]
    assert narrow.get("large") is None
    assert narrow._client.info("stats")["total_net_output_bytes"] - before < 20_000


def test_many_keys_are_answered_together(server: RedisServer) -> None:
    store = RedisStore(patient(server, "max_value=4096&prefix=p:"))
    values = {"a": b"of a", "empty": b"", "largest": b"x" * 4096, "between": b"y" * 100}
    for key, value in values.items():
        store.put(key, value)
    names = ["absent", *values, "a"]
    assert store.get_many(names) == [None, b"of a", None, values["largest"], values["between"], b"of a"]
    assert store.get_many(names, most=99) == [None, b"of a", None, None, None, b"of a"]
    assert store.get_many(names, most=100)[4] == b"y" * 100
    assert store.get_many([]) == []
    before = store._client.info("stats")["total_net_output_bytes"]
    store.get_many(["largest"], most=10)
    assert store._client.info("stats")["total_net_output_bytes"] - before < 5000, "no more than was asked for"


@pytest.mark.parametrize("connected", [True, False])
def test_a_call_ends_when_its_time_is_over(server: RedisServer, connected: bool) -> None:
    store = RedisStore(server.url(f"timeout={PATIENCE}&retries=5"))
    if connected:
        store.put("a", b"of a")
    server.freeze()
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"get_many.*no answer within 0\.2 s"):
        store.get_many(["a"], seconds=0.2)
    with pytest.raises(StoreError, match="no answer within"):
        store.get_many(["a"], seconds=-1.0)
    assert time.monotonic() - start < PATIENCE / 2, "not when the server's time is"
    server.thaw()
    assert store.get_many(["a"], seconds=PATIENCE) == [b"of a" if connected else None]
    assert until(lambda: not [each for each in threading.enumerate() if each.name == "kvtrie store"])


def test_a_call_with_time_fails_as_any_other(server: RedisServer) -> None:
    store = RedisStore(server.url("timeout=120&retries=0"))
    server.kill()
    with pytest.raises(StoreError, match="ConnectionError"):
        store.get_many(["a"], seconds=PATIENCE)


def test_a_killed_server_fails_calls_and_a_restarted_one_answers(server: RedisServer) -> None:
    store = RedisStore(server.url("timeout=120&retries=1"))
    store.put(KEY, b"1")
    server.kill()
    for call in (lambda: store.get(KEY), lambda: store.put(KEY, b"2"), lambda: store.delete(KEY)):
        assert seconds_to_fail(call) < BOUNDED
    server.start()
    assert store.get(KEY) is None, "nothing was kept"
    store.put(KEY, b"3")
    assert store.get(KEY) == b"3"
    server.restart()
    assert store.get(KEY) is None, "the connection in the pool was dead: the call made a new one"


def test_a_server_killed_in_the_middle_of_a_call_fails_that_call(server: RedisServer) -> None:
    store = RedisStore(server.url(f"timeout={PATIENCE}&retries=0"))
    store.put(KEY, b"x" * (8 << 20))
    for call in (lambda: store.get(KEY), lambda: store.put(KEY, b"y" * (8 << 20))):
        server.freeze()  # the call is sent, or half of it, and its answer does not come
        killer = threading.Timer(0.3, server.kill)
        killer.start()
        seconds = seconds_to_fail(call)
        killer.join()
        assert seconds < PATIENCE / 2, "it ended with the server, not with its own patience"
        server.start()
        assert store.get(KEY) is None
        store.put(KEY, b"x" * (8 << 20))


@pytest.mark.parametrize(("retries", "user"), [(0, ""), (1, ":some-password@")])
def test_a_silent_server_costs_as_many_tries_as_were_asked_for(black_hole: BlackHole, retries: int, user: str) -> None:
    store = RedisStore(f"redis://{user}127.0.0.1:{black_hole.port}/0?timeout=0.2&retries={retries}")
    for call in (lambda: store.get(KEY), lambda: store.put(KEY, b"1"), lambda: store.delete(KEY)):
        before = len(black_hole.connections)
        assert 0.15 * (retries + 1) < seconds_to_fail(call) < BOUNDED
        assert until(lambda: len(black_hole.connections) - before == retries + 1)  # noqa: B023


def test_a_frozen_server_costs_a_bounded_time_and_nothing_stale_comes_back(server: RedisServer) -> None:
    store = RedisStore(server.url("timeout=2.5&retries=0"))
    store.put("a", b"of a")
    store.put("b", b"of b")
    server.freeze()
    assert seconds_to_fail(lambda: store.get("a")) < BOUNDED
    server.thaw()
    assert store.get("b") == b"of b", "not the late answer to the call before"
    assert store.get("a") == b"of a"


def test_many_threads_share_one_client(server: RedisServer) -> None:
    store = RedisStore(patient(server))
    wrong: list[object] = []

    def work(number: int) -> None:
        for round_ in range(50):
            key, value = f"{number}:{round_ % 3}", f"{number} {round_}".encode() * 100
            store.put(key, value)
            found = store.get(key)
            if found != value:
                wrong.append((key, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_password_appears_nowhere(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    store = RedisStore(server.url(password="wr0ng%2Fword"))
    with pytest.raises(StoreError) as caught:
        store.get(KEY)
    seen = [repr(store), str(store), store.name, str(caught.value), repr(caught.value), caplog.text]
    with pytest.raises(kv.Error) as refused:
        pickle.dumps(store)
    seen.append(str(refused.value))
    for bad in (
        f"redis://:{SECRET}@host:port/0",
        f"redis://:{SECRET}@host/zero",
        f"redis://:{SECRET}/more@host/0",
        f"redis://:{SECRET}?more={SECRET}@host/0",
        f"redis://:{SECRET}#more@host/0",
        f"other://:{SECRET}@host/0",
        f"redis://:{SECRET}@host/0?ttl=x",
        f"redis://:{SECRET}@[host/0",
        f":{SECRET}@host",
    ):
        with pytest.raises(kv.errors.ArgumentError) as wrong:
            RedisStore(bad)
        assert wrong.value.__cause__ is None
        seen.append(str(wrong.value))
    for text in seen:
        assert SECRET not in text and "wr0ng" not in text and "word" not in text.replace("password", ""), text
    assert store.name == f"redis://127.0.0.1:{server.port}/0"
    assert RedisStore(patient(server)).get(KEY) is None, "with the right one it answers"


def test_an_error_of_the_library_loses_the_password() -> None:
    store = RedisStore("redis://:a%2Fb-secret@localhost/0")

    class Client:
        def delete(self, key: str) -> None:
            raise OSError("cannot reach redis://:a%2Fb-secret@localhost with a/b-secret")

    store._clients = (Client(), Client())  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"cannot reach redis://:\*\*\*@localhost with \*\*\*"):
        store.delete(KEY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ttl=-1", r"ttl: got '-1', allowed a number from 0 to"),
        ("ttl=0.0001", r"ttl: got 0.0001, allowed 0 or at least 0.001"),
        ("ttl=nan", r"ttl: got 'nan'"),
        ("ttl=soon", r"ttl: got 'soon'"),
        ("timeout=0", r"timeout: got '0', allowed a number from 0.001"),
        ("timeout=inf", r"timeout: got 'inf'"),
        ("retries=1.5", r"retries: got '1.5', allowed a whole number from 0 to 100"),
        ("max_value=1023", r"max_value: got '1023', allowed a whole number from 1024 to 536870912"),
        ("max_value=", r"max_value: got ''"),
        ("ttl=1&ttl=2", r"ttl: got it twice"),
        ("decode_responses=true", r"url: got option 'decode_responses', allowed prefix, ttl"),
        ("socket_timeout=1", r"got option 'socket_timeout'"),
        ("max_connections=many", r"Invalid value for 'max_connections'"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: str, message: str) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=message):
        RedisStore(f"redis://localhost/0?{options}")


@pytest.mark.parametrize(
    "url", ["redis://h\udcba", "redis://:p\udcba@h", "redis://h?ssl_ca\udcba=x", "redis://h?ssl_certfile=\udcba"]
)
def test_a_url_that_is_no_text_is_refused(url: str) -> None:
    """As one is that comes from bytes that are no UTF-8."""
    with pytest.raises(kv.errors.ArgumentError, match="lone surrogates"):
        RedisStore(url)


def test_options_have_the_values_of_the_url() -> None:
    store = RedisStore("valkeys://someone@cache.example:7000/3?prefix=p%3A&ttl=60&timeout=0.5&retries=4&max_value=2048")
    assert (store.prefix, store.ttl, store.timeout, store.retries, store.max_value) == ("p:", 60, 0.5, 4, 2048)
    assert store.name == "valkeys://cache.example:7000/3"
    settings = store._client.connection_pool.connection_kwargs
    assert (settings["host"], settings["port"], settings["db"], settings["username"]) == (
        "cache.example",
        7000,
        3,
        "someone",
    )
    assert store._client.connection_pool.connection_class.__name__ == "SSLConnection"
    assert RedisStore("redis://[::1]:7000").name == "redis://[::1]:7000/0"


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(kv.errors.NotSupportedError, match=r"pip install 'kvtrie\[store\]'"):
        RedisStore("redis://localhost")


def test_a_store_is_a_url_or_an_object_with_three_methods() -> None:
    table = Table()
    assert open_store(table) is table and isinstance(table, stores.Store)
    assert isinstance(open_store("redis://localhost"), RedisStore)
    for wrong in (None, 5, {}, Table, object()):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"store: got .*get\(key\)"):
            open_store(wrong)


# ---- a Python object as a store of the core --------------------------------------------------------------------------


class Table:
    """A store in a dict that fails when it is told to."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: Optional[BaseException] = None

    def get(self, key: str) -> Any:
        self._maybe_fail()
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._maybe_fail()
        assert type(key) is str and type(value) is bytes
        self.values[key] = value

    def delete(self, key: str) -> None:
        self._maybe_fail()
        self.values.pop(key, None)

    def _maybe_fail(self) -> None:
        if self.error is not None:
            raise self.error


def test_contents_go_through_a_python_object_and_back() -> None:
    table = Table()
    tier = _core._SharedTier(table, 1024)
    for content in (b"", b"small", bytes(range(256)) * 40):
        assert tier.put(KEY, content)
        assert tier.get(KEY) == ("hit", content)
    assert max(map(len, table.values.values())) <= 1024
    assert tier.get("absent") == ("absent", None)
    stats = tier.stats()
    assert stats["name"] == "Table" and stats["hits"] == 3 and stats["misses"] == 1 and stats["faults"] == {}


def test_damage_in_a_python_object_is_a_miss() -> None:
    table = Table()
    tier = _core._SharedTier(table, 1024)
    assert tier.put(KEY, b"content")
    table.values[KEY] = table.values[KEY][:-1] + b"X"
    assert tier.get(KEY) == ("wrong", None)
    assert table.values == {} and tier.stats()["faults"] == {"checksum": 1}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (KeyError("a"), "KeyError: 'a'"),
        (SystemExit(3), "SystemExit: 3"),
        (StoreError("gone"), "StoreError: gone"),
        (RuntimeError("two\nlines"), "RuntimeError: two"),
        (RuntimeError("\udc80"), "an exception without a text"),
    ],
)
def test_what_an_object_raises_is_a_failed_call(error: BaseException, text: str) -> None:
    table = Table()
    tier = _core._SharedTier(table, 1024, failures_in_a_row=2, retry_after=10.0)
    assert tier.put(KEY, b"content")
    table.error = error
    assert tier.get(KEY, now=1.0) == ("failed", None)
    assert not tier.put(KEY, b"other", now=1.0)
    assert tier.stats()["last_failure"] == text and tier.stats()["state"] == "open"
    table.error = None
    assert tier.get(KEY, now=5.0) == ("failed", None), "left alone"
    assert tier.get(KEY, now=12.0) == ("hit", b"content")
    assert tier.stats()["state"] == "closed"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where these tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_keyboard_interrupt_still_interrupts() -> None:
    table = Table()
    tier = _core._SharedTier(table, 1024)
    table.error = KeyboardInterrupt()

    def call_for_a_while() -> None:
        for _ in range(1000):
            tier.get(KEY)
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        call_for_a_while()


class Together(Table):
    """One that answers many keys at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[str], int, Optional[float]]] = []
        self.answer: Callable[[list[str]], Any] = lambda keys: [self.values.get(key) for key in keys]

    def get_many(self, keys: list[str], most: int, seconds: Optional[float]) -> Any:
        self._maybe_fail()
        self.asked.append((keys, most, seconds))
        return self.answer(keys)


def test_an_object_with_get_many_is_asked_by_it() -> None:
    table = Together()
    tier = _core._SharedTier(table, 1024)
    assert tier.put(KEY, b"content")
    assert tier.get(KEY) == ("hit", b"content")
    assert tier.get(KEY, seconds=1.5) == ("hit", b"content")
    assert tier.get("absent") == ("absent", None)
    assert tier.get(KEY, seconds=0.0) == ("failed", None)
    assert table.asked == [([KEY], 1024, None), ([KEY], 1024, 1.5), (["absent"], 1024, None)]
    stats = tier.stats()
    assert (stats["calls"], stats["late"], stats["failures"]) == (4, 1, 0)


@pytest.mark.parametrize("answer", [None, (b"x",), [], [b"x", b"y"], [5], "x", {KEY: b"x"}])
def test_an_answer_that_is_no_list_of_values_fails_that_call(answer: Any) -> None:
    table = Together()
    table.answer = lambda keys: answer
    tier = _core._SharedTier(table, 1024)
    assert tier.get(KEY) == ("failed", None)
    assert "get_many: got" in tier.stats()["last_failure"]


@pytest.mark.parametrize("value", ["text", 5, bytearray(b"x"), object(), [b"x"]])
def test_an_object_that_gives_no_bytes_fails_that_call(value: object) -> None:
    table = Table()
    table.values[KEY] = value  # type: ignore[assignment]
    tier = _core._SharedTier(table, 1024)
    assert tier.get(KEY) == ("failed", None)
    assert "allowed bytes or None" in tier.stats()["last_failure"]


def test_an_object_without_the_methods_is_refused() -> None:
    for wrong in (None, object(), {}, type("Half", (), {"get": print, "put": print})()):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"store"):
            _core._SharedTier(wrong, 1024)


def test_the_object_goes_with_its_tier() -> None:
    table = Table()
    gone = weakref.ref(table)
    tier = _core._SharedTier(table, 1024)
    del table
    gc.collect()
    assert tier.put(KEY, b"content") and gone() is not None
    del tier
    gc.collect()
    assert gone() is None


def test_other_python_threads_run_while_a_store_waits() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Table):
        def get(self, key: str) -> Any:
            entered.set()
            assert leave.wait(PATIENCE)
            return super().get(key)

    tier = _core._SharedTier(Slow(), 1024)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(tier.get(KEY)))
    waiting.start()
    assert entered.wait(PATIENCE)
    assert tier.put("another", b"1"), "one slow call keeps nobody else"
    leave.set()
    waiting.join()
    assert answers == [("absent", None)]


ENDING = """
import sys, threading, time
from kvtrie import _core

entered = threading.Event()

class Slow:
    def get(self, key): ...
    def put(self, key, value):
        entered.set()
        time.sleep(0.05)
        print("put", flush=True)
    def delete(self, key): ...

tier = _core._SharedTier(Slow(), 1024)
for _ in range(20):
    tier.put_later("key", b"content")
entered.wait()
"""


@pytest.mark.parametrize(
    "last", ["", "del tier", "sys.exit(0)", "cycle = [tier]; cycle.append(cycle); del tier, cycle"]
)
def test_the_interpreter_ends_well_while_a_thread_writes_behind(last: str) -> None:
    done = run_python("-c", ENDING + last)
    assert (done.returncode, done.stderr) == (0, "")
    assert 1 <= done.stdout.count("put") <= 20, "the call under way was waited for"
    if last == "del tier":
        assert done.stdout.count("put") == 20, "so was the rest of what a tier was given"


# ---- both together ---------------------------------------------------------------------------------------------------


def test_two_processes_share_contents_of_any_size_through_a_server(server: RedisServer) -> None:
    url = patient(server, "max_value=4096")
    tier = _core._SharedTier(RedisStore(url), 4096)
    content = bytes(range(256)) * 400
    assert tier.put(KEY, content)
    program = (
        "import sys; from kvtrie import _core, stores\n"
        f"tier = _core._SharedTier(stores.RedisStore({url!r}), 4096)\n"
        f"print(tier.get({KEY!r}) == ('hit', bytes(range(256)) * 400))"
    )
    done = run_python("-c", program)
    assert done.stdout == "True\n", done.stderr


def test_a_server_killed_between_two_chunks_loses_the_content_and_nothing_else(server: RedisServer) -> None:
    store = RedisStore(server.url("timeout=120&retries=0"))

    class Killing:
        name = "killing"
        calls = 0

        def get(self, key: str) -> Optional[bytes]:
            return self._count(lambda: store.get(key))

        def put(self, key: str, value: bytes) -> None:
            self._count(lambda: store.put(key, value))

        def delete(self, key: str) -> None:
            store.delete(key)

        def _count(self, work: Callable[[], Any]) -> Any:
            self.calls += 1
            if self.calls == kill_at:
                server.kill()
            return work()

    content = bytes(range(256)) * 20
    for kill_at in (2, 9):  # 5 chunks and a head are put, then read
        tier = _core._SharedTier(Killing(), 1024, failures_in_a_row=1, retry_after=10.0)
        assert tier.put(KEY, content) is (kill_at > 6)
        assert tier.get(KEY) == ("failed", None)
        assert tier.stats()["state"] == "open" and tier.stats()["opened"] == 1
        server.start()
        assert tier.get(KEY, now=20.0) == ("absent", None), "a restarted server has nothing, and it is asked again"
        assert tier.put(KEY, content, now=20.0) and tier.get(KEY, now=20.0) == ("hit", content)


def test_a_server_that_evicts_makes_misses(server: RedisServer) -> None:
    store = RedisStore(patient(server))
    store._client.config_set("maxmemory", "3mb")
    store._client.config_set("maxmemory-policy", "allkeys-lru")
    tier = _core._SharedTier(store, 1 << 16)
    contents = {f"key{i}": bytes([i]) * 200_000 for i in range(40)}
    for key, content in contents.items():
        tier.put(key, content)
    answers = [tier.get(key) for key in contents]
    assert {answer for answer, _ in answers} <= {"hit", "absent", "wrong"}
    assert all(found == content for (answer, found), content in zip(answers, contents.values()) if answer == "hit")
    assert tier.stats()["misses"] > 0 and tier.stats()["failures"] == 0


def test_a_full_server_fails_puts_only(server: RedisServer) -> None:
    store = RedisStore(patient(server))
    tier = _core._SharedTier(store, 1 << 16, failures_in_a_row=100)
    assert tier.put(KEY, b"content")
    store._client.config_set("maxmemory", "1")
    store._client.config_set("maxmemory-policy", "noeviction")
    assert not tier.put("another", b"more")
    assert "OutOfMemory" in tier.stats()["last_failure"] or "OOM" in tier.stats()["last_failure"]
    assert tier.get(KEY) == ("hit", b"content")
