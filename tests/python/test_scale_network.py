"""Several hosts on one machine (network.py), whose links are slow, lossy, narrow or cut: answers stay right, and what a
store may take of a request's time is bounded."""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Optional

import httpx
import pytest

import redis_server
from network import Host, Link, network, why_not
from processes import PATIENCE, started_python, wait_for
from redis_server import SECRET, RedisServer
from scale_requests import ask, chat_of, events_of, expected, text_of

WORKER = Path(__file__).with_name("network_worker.py")
TOKENS = [(11 * i) % 3000 for i in range(4 * 256 + 40)]
LINKS = {
    "near": Link(),
    "far": Link(delay=0.04),
    "lossy": Link(delay=0.002, loss=0.04),
    "narrow": Link(rate=4e6, queue=20_000),
    "all of it": Link(delay=0.02, loss=0.02, rate=4e6, queue=20_000),
}

ALONE = ("far", "lossy", "narrow")  # what "all of it" has together


@contextmanager
def hosts_named(*names: str) -> Iterator[dict[str, Host]]:
    """Skipped where there can be none."""
    if why_not():
        pytest.skip(why_not())
    with network(*names) as made:
        yield made


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Host]]:
    with hosts_named("store", "left", "right") as made:
        yield made


@pytest.fixture
def store(hosts: dict[str, Host], tmp_path: Path) -> Iterator[RedisServer]:
    """A server on the host of that name, whose link is as good as they come before and after."""
    if redis_server.BINARY is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    place = hosts["store"]
    with redis_server.running(tmp_path, SECRET, address=place.address, inside=place.inside) as started:
        yield started
    for host in hosts.values():
        host.set_link(Link())
        host.mend()


class Cache:
    """A prefix cache in a process on some host (network_worker.py)."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def begin(self, tokens: list[int], flush: bool = False) -> dict[str, Any]:
        self._process.stdin.write(json.dumps({"tokens": tokens, "flush": flush}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        result: dict[str, Any] = json.loads(line)
        return result


@contextmanager
def cache_on(host: Host, url: str, **options: Any) -> Iterator[Cache]:
    with started_python(WORKER, url, json.dumps(options), before=host.inside) as process:
        yield Cache(process)


# ---- two caches and a store ------------------------------------------------------------------------------------------


CI, LONG = pytest.mark.ci, pytest.mark.soak


@pytest.mark.parametrize(
    "quality", ["near", pytest.param("all of it", marks=CI), *(pytest.param(each, marks=LONG) for each in ALONE)]
)
def test_what_one_host_sent_the_other_finds(hosts: dict[str, Host], store: RedisServer, quality: str) -> None:
    """Every K and V that a model sees there is compared."""
    for host in hosts.values():
        host.set_link(LINKS[quality])
    url = store.url(f"timeout={PATIENCE}")
    left, right = hosts["left"], hosts["right"]
    before = hosts["store"].sent()
    with cache_on(left, url, store_deadline=None) as one, cache_on(right, url, store_deadline=None) as other:
        first = one.begin(TOKENS, flush=True)
        assert (first["reused"], first["flushed"]) == (0, True)
        found = other.begin([*TOKENS, 1, 2, 3], flush=True)
        assert (found["reused"], found["tier"], found["rows"]) == (len(TOKENS), "store", 3)
        back = one.begin([*TOKENS, 1, 2, 3, 4])
        assert (back["reused"], back["tier"]) == (len(TOKENS) + 3, "store")
    sent = hosts["store"].sent() - before
    figures = f"{found['calls']} round trips, {found['bytes_in']} bytes, {found['seconds']} s"
    print(f"\n{quality}: {figures}; the store sent {sent} bytes in all")


# ---- one deadline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [pytest.param("cut", marks=CI), pytest.param("trickle", marks=LONG)])
def test_begin_does_not_wait_for_a_store_that_is_out_of_reach(
    hosts: dict[str, Host], store: RedisServer, trouble: str
) -> None:
    url, place = store.url("timeout=120&retries=5"), hosts["store"]
    with cache_on(hosts["left"], url) as one:
        assert one.begin(TOKENS, flush=True)["flushed"]
    with cache_on(hosts["right"], url, store_deadline=1.0) as cache:
        assert cache.begin(list(range(100, 200)))["reused"] == 0, "it has a connection now"
        if trouble == "cut":
            place.cut()
        else:
            place.set_link(Link(rate=4000, queue=1 << 20))  # bits a second: all of it would take minutes
        tried = [cache.begin(TOKENS)]
        while tried[-1]["state"] != "open":
            tried.append(cache.begin(TOKENS))
        for each in tried:
            assert (each["reused"], each["rows"]) == (0, len(TOKENS)), "it was computed instead"
            assert each["seconds"] < 60, "far from what the client would wait"
        while not (left_alone := cache.begin(TOKENS))["skipped"]:  # a call that tries again may come between
            assert left_alone["seconds"] < 60
        assert left_alone["reused"] == 0
        place.set_link(Link())
        place.mend()
        while (again := cache.begin(TOKENS))["reused"] < len(TOKENS) - 1:  # one that is short of time takes a part
            assert again["seconds"] < 60
        assert again["tier"] == "store"
    print(f"\n{trouble}: {[each['seconds'] for each in tried]} s, left alone {left_alone['seconds']} s")


# ---- replicas on two hosts -------------------------------------------------------------------------------------------


class Clients:
    """Ask again and again until ``ended``, every other time for a stream. Whatever they get is counted: ``right``
    answers, ``errors`` in the API's form, and ``of_ray``: what its proxy says, or ends, where the router has gone."""

    def __init__(self, url: str) -> None:
        self.url, self.ended = url, threading.Event()
        self.right = self.errors = self.of_ray = 0

    def run(self, seed: int) -> None:
        dice = random.Random(seed)
        try:
            with httpx.Client(base_url=self.url, timeout=PATIENCE) as own:
                while not self.ended.is_set():
                    self._ask(own, chat_of(dice, dice.randrange(20, 200)), dice.random() < 0.5)
        finally:
            self.ended.set()  # also when an answer is wrong

    def wait_for_more(self, count: int = 8) -> None:
        """Until there are so many more right answers."""
        wanted = self.right + count
        wait_for(lambda: self.right >= wanted or self.ended.is_set())

    def _ask(self, own: httpx.Client, chat: Any, stream: bool) -> None:
        try:
            answer = ask(own, chat, stream=stream)
        except httpx.RemoteProtocolError:  # a body that ends too early
            self.of_ray += 1
            return
        if answer.status_code != 200:
            of_api = answer.headers["content-type"].startswith("application/json") and answer.json()["error"]["type"]
            self.errors, self.of_ray = self.errors + bool(of_api), self.of_ray + (not of_api)
        elif (text := streamed_text(answer) if stream else text_of(answer)) is None:
            self.errors += 1
        else:
            assert text == expected(chat, 8)
            self.right += 1


def streamed_text(answer: Any) -> Optional[str]:
    """None where it ends with an error."""
    *events, last = events_of(answer.text.splitlines())
    if last == "[DONE]":
        return "".join(each["choices"][0]["delta"].get("content", "") for each in events)
    assert last["error"]["type"]
    return None


@contextmanager
def asking(host: Host, url: str, count: int = 4) -> Iterator[Clients]:
    """Clients on that host for as long as the block takes."""
    clients = Clients(url)
    with host.threads(count) as pool:
        running = [pool.submit(clients.run, seed) for seed in range(count)]
        try:
            yield clients
        finally:
            clients.ended.set()
        for each in running:
            each.result()


@contextmanager
def two_hosts(tmp_path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """Replicas on two hosts, a store on a third: the application, the hosts, and what starts Ray on the second."""
    pytest.importorskip("ray")
    from scale_hosts import application, head, worker

    options = {"model": "tiny", "engine": "scale_engine:naming", "context": 8192, "seed": 1, "attempts": 10}
    with ExitStack() as stack:
        add = stack.enter_context
        folder = Path(add(tempfile.TemporaryDirectory(prefix="kv", dir="/tmp", ignore_cleanup_errors=True)))
        hosts = add(hosts_named("store", "first", "second"))
        place, first, second = hosts.values()
        server = add(redis_server.running(tmp_path, SECRET, address=place.address, inside=place.inside))
        add(head(first, folder))
        add(worker(second, folder, first))
        there = add(application(first, folder, replicas=2, store=server.url(), **options))
        there.wait_for(first, second)
        yield there, hosts, lambda: add(worker(second, folder, first))


@pytest.mark.soak
def test_replicas_on_two_hosts_one_of_which_is_cut_off(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (there, hosts, start_second):
        _, first, second = hosts.values()
        for host in hosts.values():
            host.set_link(Link(delay=0.01, loss=0.01))
        with asking(first, there.url) as clients:
            clients.wait_for_more()
            wait_for(lambda: all(known for _, known in there.replicas().values()))
            router = there.router()
            second.cut()
            clients.wait_for_more()
            there.wait_for(first)
            clients.wait_for_more()
            second.mend()
            start_second()
            there.wait_for(first, second)
            clients.wait_for_more()
        print(f"\n{clients.right} right answers, {clients.errors} errors, {clients.of_ray} of Ray's")
        assert not clients.of_ray or router == second.address, "the proxy is on the first"
