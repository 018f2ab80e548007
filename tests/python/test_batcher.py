"""Requests from threads and coroutines: each has the tokens it has alone, and every way to end one is an end."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie._leading import leading
from kvtrie.pace import Pace
from processes import PATIENCE, run_python, wait_for
from random_models import random_model
from reference_llama import random_llama
from test_batch import COUNT, PROMPTS, SAMPLING, answers_alone, make_cache


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.from_weights(*random_llama(11))


@pytest.fixture(scope="module")
def alone(model: Any) -> list[list[int]]:
    return answers_alone(model)


class Gate:
    """A logits processor that waits until it is let through, behind ``free`` tokens that it does not hold."""

    def __init__(self, free: int = 0) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._free = free

    def __call__(self, _tokens: Any, _row: Any) -> None:
        if self._free > 0:
            self._free -= 1
            return
        self.reached.set()
        assert self.open.wait(PATIENCE)


def submit_all(batcher: kv.Batcher, count: int = COUNT) -> list[kv.Request[int]]:
    return [batcher.submit(prompt, count, ignore_eos=True, **sampling) for prompt, sampling in zip(PROMPTS, SAMPLING)]


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_sessions", "chunk", "stall"), [(8, 128, None), (2, 3, 0.01), (1, 128, 0.2), (3, 1, 1e-9)]
)
def test_each_has_the_tokens_it_has_alone(model: Any, alone: Any, max_sessions: int, chunk: int, stall: Any) -> None:
    cache = make_cache(model)
    with kv.Batcher(model, cache, max_sessions=max_sessions, chunk=chunk, stall=stall) as batcher:
        requests = submit_all(batcher)
        assert [request.result(PATIENCE) for request in requests] == alone
        assert [list(request) for request in requests] == alone  # again, from the first one on
        assert {request.finish_reason for request in requests} == {"length"}
        stats = batcher.stats()
        assert (stats["active"], stats["waiting"], stats["finished"]) == (0, 0, len(PROMPTS))
        assert stats["tokens"] == len(PROMPTS) * COUNT
    assert cache.stats()["sessions"] == 0
    assert cache.check() == []
    cache.close()


def test_many_threads(model: Any, alone: Any) -> None:
    cache = make_cache(model)
    found: dict[int, list[list[int]]] = {}
    with kv.Batcher(model, cache, max_sessions=3) as batcher:

        def client(number: int) -> None:
            found[number] = [list(request) for request in submit_all(batcher)]

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == dict.fromkeys(range(6), alone)
    cache.close()


def test_coroutines(model: Any, alone: Any) -> None:
    async def read(request: kv.Request[int]) -> list[int]:
        return [token async for token in request]

    async def all_of_them() -> tuple[list[list[int]], list[list[int]]]:
        requests = submit_all(batcher)
        read_all = await asyncio.gather(*map(read, requests))
        return read_all, [await request for request in requests]

    cache = make_cache(model)
    with kv.Batcher(model, cache, max_sessions=2) as batcher:
        assert asyncio.run(all_of_them()) == (alone, alone)
    cache.close()


def test_tokens_come_while_it_goes_on(model: Any) -> None:
    """Not at its end: the gate is closed when the first tokens are read."""
    gate, passed = Gate(), []

    def third(tokens: Any, row: Any) -> None:
        passed.append(len(tokens))
        if len(passed) == 3:
            gate(tokens, row)

    cache = make_cache(model)
    with kv.Batcher(model, cache) as batcher:
        request = batcher.submit(PROMPTS[0], COUNT, ignore_eos=True, logits_processors=third)
        tokens = iter(request)
        first = [next(tokens), next(tokens)]
        assert request.finish_reason is None
        assert request.tokens == first
        gate.open.set()
        assert [*first, *tokens] == request.result(PATIENCE)
    cache.close()


def test_what_it_tells(model: Any) -> None:
    cache = make_cache(model)
    with kv.Batcher(model, cache) as batcher:
        request = batcher.submit(PROMPTS[0], 3, ignore_eos=True, logprobs=2)
        request.result(PATIENCE)
        assert (request.prompt_tokens, request.reused, request.error) == (len(PROMPTS[0]), 0, None)
        assert [each.token for each in request.logprobs] == request.tokens
        again = batcher.submit(PROMPTS[0], 1, ignore_eos=True)
        again.result(PATIENCE)
        assert again.reused == len(PROMPTS[0]) - 1
        stopped = batcher.submit(PROMPTS[0], COUNT, stop=request.tokens[1], ignore_eos=True)
        assert stopped.result(PATIENCE) == request.tokens[:2]
        assert (stopped.finish_reason, stopped.stopped_by) == ("stop", request.tokens[1])
        assert (
            repr(stopped)
            == f"<kvtrie.Request 2 tokens of an answer to {len(PROMPTS[0])}, stop, {stopped.reused} reused>"
        )
    cache.close()


# --- what is shared ---------------------------------------------------------------------------------------------------


def test_a_prefix_that_several_wait_for_is_computed_once(model: Any) -> None:
    shared = [int(token) for token in np.random.default_rng(5).integers(0, 60, 120)]
    prompts = [[*shared, number, number + 1] for number in range(5)]
    for chunk in (16, 512):
        cache = make_cache(model, 512)
        made = kv.generate_batch(model, prompts, 2, cache=cache, chunk=chunk, ignore_eos=True)
        assert cache.stats()["computed_tokens"] == len(shared) + 5 * (2 + 1)  # own words, and the first new token
        cache.close()
        for prompt, answer in zip(prompts, made):
            with make_cache(model, 512) as fresh, fresh.begin(prompt) as session:
                assert answer.tokens == list(kv.generate(model, session, 2, ignore_eos=True, chunk=chunk))


def test_a_request_says_what_the_cache_had_when_it_began(model: Any) -> None:
    with kv.Batcher(model, make_cache(model, 512)) as running:
        prompt = list(range(5, 45))
        first = running.submit(prompt, 2)
        first.result()
        second = running.submit([*prompt[:30], 3, 4], 2)
        second.result()
        third = running.submit(prompt, 2)
        third.result()
    assert first.beginning == (0, 0, "none", "")
    assert second.beginning == (30, 30, "device", "")
    assert third.beginning is not None and third.beginning[:3] == (40, 39, "device")
    assert third.beginning.reason.code == "last_token"


def test_what_another_one_computed_counts_as_reused(model: Any) -> None:
    shared = [int(token) for token in np.random.default_rng(6).integers(0, 60, 120)]
    cache = make_cache(model, 512)
    batch = kv.Batch(model, cache, chunk=16)
    waiting = [batch.make([*shared, number], 2, ignore_eos=True) for number in range(4)]
    for each in waiting:
        batch.take(each)
    while batch.step():
        pass
    assert [each.reused for each in waiting] == [0, 120, 120, 120]


@pytest.mark.parametrize(
    "kind", ["dense", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("window", "hybrid"))]
)
def test_state_is_kept_at_checkpoints(kind: str) -> None:
    """Prompts that go on differently from there compute what is new to them, whatever kind of state there is."""
    model = random_model(kind)
    cache = kv.PrefixCache(model.caches(capacity=512), host_bytes=0, checkpoint_every=1 << 20)
    shared = [int(token) for token in np.random.default_rng(8).integers(0, 60, 70)]
    with kv.Batcher(model, cache, chunk=32) as batcher:
        first = batcher.submit([*shared, 1, 2, 3], 2, ignore_eos=True, checkpoints=[40, 70])
        beside = batcher.submit([5, 6, 7], 2, ignore_eos=True)  # whoever has none shares the steps
        first.result(PATIENCE), beside.result(PATIENCE)
        for length, more in ((70, [4, 5]), (40, [6, 7, 8])):
            assert cache.plan([*shared[:length], *more]).reusable == length
            other = batcher.submit([*shared[:length], *more], 2, ignore_eos=True)
            other.result(PATIENCE)
            assert other.reused == length
    cache.close()


def test_checkpoints_are_lengths_of_the_prompt(model: Any) -> None:
    with kv.Batcher(model, make_cache(model)) as batcher:
        for wrong in ([0], [4], [-1], [2, 99]):
            with pytest.raises(kv.errors.ArgumentError, match="checkpoints"):
                batcher.submit([1, 2, 3], 1, checkpoints=wrong)
        for wrong_type in (["1"], 3, [1.5], [None]):
            with pytest.raises(kv.errors.ArgumentTypeError, match="checkpoints"):
                batcher.submit([1, 2, 3], 1, checkpoints=wrong_type)


def test_nobody_waits_for_little_or_for_another_namespace(model: Any) -> None:
    cache = make_cache(model, 1024)
    shared = list(range(50))

    def make(tokens: list[int], namespace: str = "default") -> Any:
        each = kv.Batch(model, cache).make(tokens, 1, namespace=namespace)
        each.session = cache.begin(tokens, namespace)
        return each

    first, second = make([*shared, 1, 2]), make([*shared, 3, 4])
    assert leading([first, second]) == [first]
    assert leading([second, first]) == [second]  # of two as far the first one leads
    assert leading([first, make([*shared, 1, 2], "other")]) != [first]
    few = make([*shared[:20], 59, 58])
    assert leading([first, few]) == [first, few]
    for step in second.live.prefill(chunk=10):
        model(step)
        break
    assert leading([first, second]) == [second]  # whoever is further leads
    cache.close()


def test_somebody_always_takes_part() -> None:
    """Whatever they share, at whatever lengths: no two wait for each other."""

    class Fake:
        def __init__(self, tokens: Any, length: int) -> None:
            self.live = self.origin = self
            self.length, self.namespace, self._tokens = length, "n", np.asarray(tokens, np.int32)
            self.in_prompt, self.alone = len(tokens) - length > 1, False

        def all_tokens(self) -> Any:
            return self._tokens

    random = np.random.default_rng(17)
    held = 0
    for _ in range(500):
        trunk = random.integers(0, 3, 200)
        some = []
        for _ in range(int(random.integers(1, 7))):
            at = int(random.integers(0, 200))
            tokens = np.concatenate([trunk[:at], random.integers(0, 3, int(random.integers(1, 80)))])
            some.append(Fake(tokens, int(random.integers(0, len(tokens)))))
        lead: list[Any] = leading(some)  # type: ignore[arg-type]
        assert lead
        held += len(some) - len(lead)
        assert all(each in lead for each in some if not each.in_prompt)
        assert max(some, key=lambda each: each.length) in lead
    assert held > 100


# --- ends -------------------------------------------------------------------------------------------------------------


def test_cancelled_at_the_next_step_and_its_work_kept(model: Any, alone: Any) -> None:
    cache, gate = make_cache(model), Gate()
    with kv.Batcher(model, cache) as batcher:
        gone = batcher.submit(PROMPTS[0], 1000, ignore_eos=True, logits_processors=gate)
        other = batcher.submit(PROMPTS[4], COUNT, ignore_eos=True)
        assert gate.reached.wait(PATIENCE)
        gone.cancel()
        gate.open.set()
        assert len(gone.result(PATIENCE)) == 1
        assert gone.finish_reason == "cancelled"
        assert other.result(PATIENCE) == alone[4]
        assert batcher.stats()["cancelled"] == 1
        assert cache.plan([*PROMPTS[0], 0]).reusable == len(PROMPTS[0])
        gone.cancel()  # nothing more
    assert cache.stats()["sessions"] == 0
    cache.close()


def test_cancelled_before_it_began(model: Any) -> None:
    cache, gate = make_cache(model), Gate()
    with kv.Batcher(model, cache, max_sessions=1) as batcher:
        first = batcher.submit(PROMPTS[0], 2, ignore_eos=True, logits_processors=gate)
        waiting = batcher.submit(PROMPTS[1], 2, ignore_eos=True)
        assert gate.reached.wait(PATIENCE)
        assert batcher.stats()["waiting"] >= 1
        waiting.cancel()
        gate.open.set()
        assert waiting.result(PATIENCE) == []
        assert len(first.result(PATIENCE)) == 2
    cache.close()


def test_the_time_limit_of_a_result_is_for_all_of_it(model: Any) -> None:
    """Not for each token: this request has them all the time, and takes 2,000 times as long at least."""
    cache = make_cache(model, 2048)
    with kv.Batcher(model, cache) as batcher:
        request = batcher.submit(PROMPTS[0], 1000, ignore_eos=True, logits_processors=lambda *_: time.sleep(0.1))
        next(iter(request))
        with pytest.raises(kv.errors.BusyError, match=r"0\.05 seconds"):
            request.result(0.05)
        assert request.finish_reason is None
    cache.close()


def test_leaving_a_with_block_or_dropping_it_cancels(model: Any) -> None:
    """The gates keep both from ending by themselves before."""
    cache = make_cache(model, 2048)
    with kv.Batcher(model, cache) as batcher:
        gate = Gate(free=1)
        with batcher.submit(PROMPTS[0], 1000, ignore_eos=True, logits_processors=gate) as request:
            next(iter(request))
        gate.open.set()
        request.result(PATIENCE)
        assert request.finish_reason == "cancelled"
        gate = Gate()
        forgotten = batcher.submit(PROMPTS[1], 1000, ignore_eos=True, logits_processors=gate)
        stream = forgotten._published
        del forgotten
        gc.collect()
        gate.open.set()
        assert stream.wait(10**9, PATIENCE)
        assert stream.outcome is not None and stream.outcome.finish_reason == "cancelled"
    cache.close()


def test_a_task_that_is_cancelled_takes_its_request_along(model: Any) -> None:
    async def scenario(way: str) -> kv.Request[int]:
        gate = Gate(free=1)
        request = batcher.submit(PROMPTS[0], 1500, ignore_eos=True, logits_processors=gate)

        async def read() -> None:
            if way == "await":
                await request
            async for _ in request:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0)  # it reads: one that is cancelled before it begins never had the request
        while not request.tokens:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        return request

    cache = make_cache(model, 4096)
    with kv.Batcher(model, cache) as batcher:
        for way in ("await", "async for"):
            request = asyncio.run(scenario(way))
            request.result(PATIENCE)
            assert request.finish_reason == "cancelled"
    cache.close()


def test_one_that_fails_ends_alone(model: Any, alone: Any) -> None:
    def raising(_tokens: Any, _row: Any) -> None:
        raise RuntimeError("mine")

    cache = make_cache(model, 64)
    with kv.Batcher(model, cache) as batcher:
        failing = batcher.submit(PROMPTS[0], COUNT, logits_processors=raising)
        too_long = batcher.submit(list(range(60)) * 2, COUNT)
        outgrowing = batcher.submit(PROMPTS[2], 500, ignore_eos=True)
        fine = batcher.submit(PROMPTS[4], COUNT, ignore_eos=True)
        assert fine.result(PATIENCE) == alone[4]
        with pytest.raises(RuntimeError, match="mine"):
            failing.result(PATIENCE)
        with pytest.raises(RuntimeError, match="mine"):
            list(failing)
        with pytest.raises(kv.errors.ArgumentError):
            too_long.result(PATIENCE)
        with pytest.raises((kv.errors.CacheFullError, kv.errors.ArgumentError)):  # beside others, or alone
            outgrowing.result(PATIENCE)
        assert {each.finish_reason for each in (failing, too_long, outgrowing)} == {"failed"}
        assert batcher.stats()["failed"] == 3
        assert batcher.submit(PROMPTS[0], COUNT, ignore_eos=True).result(PATIENCE) == alone[0]
    assert cache.stats()["sessions"] == 0
    assert cache.check() == []
    cache.close()


def test_a_model_that_fails_ends_those_in_the_step(model: Any, alone: Any) -> None:
    broken = threading.Event()

    def sometimes(step: Any) -> Any:
        if broken.is_set():
            broken.clear()
            raise kv.errors.DeviceError("[test] the device failed")
        return model(step)

    cache, gate = make_cache(model), Gate()
    sometimes.config = model.config  # type: ignore[attr-defined]
    with kv.Batcher(sometimes, cache) as batcher:
        first = batcher.submit(PROMPTS[0], COUNT, ignore_eos=True, logits_processors=gate)
        assert gate.reached.wait(PATIENCE)
        broken.set()
        gate.open.set()
        with pytest.raises(kv.errors.DeviceError):
            first.result(PATIENCE)
        assert batcher.submit(PROMPTS[4], COUNT, ignore_eos=True).result(PATIENCE) == alone[4]
    assert cache.check() == []
    cache.close()


def test_too_many_are_refused_by_name(model: Any) -> None:
    cache, gate = make_cache(model), Gate()
    with kv.Batcher(model, cache, max_sessions=1, max_waiting=1) as batcher:
        first = batcher.submit(PROMPTS[0], 2, ignore_eos=True, logits_processors=gate)
        second = batcher.submit(PROMPTS[1], 2, ignore_eos=True)
        with pytest.raises(kv.errors.BusyError, match="got 3, allowed 2"):
            batcher.submit(PROMPTS[2], 2)
        gate.open.set()
        assert len(first.result(PATIENCE)) == len(second.result(PATIENCE)) == 2
        batcher.submit(PROMPTS[2], 2).result(PATIENCE)
    cache.close()


def test_a_result_that_takes_too_long(model: Any) -> None:
    cache, gate = make_cache(model), Gate()
    with kv.Batcher(model, cache) as batcher:
        request = batcher.submit(PROMPTS[0], 2, ignore_eos=True, logits_processors=gate)
        assert gate.reached.wait(PATIENCE)
        with pytest.raises(kv.errors.BusyError):
            request.result(timeout=0.01)
        gate.open.set()
        assert len(request.result(PATIENCE)) == 2
    cache.close()


def test_closing_ends_all_and_wakes_all_readers(model: Any) -> None:
    passed = itertools.count()

    def until_it_closes(_tokens: Any, _row: Any) -> None:
        if next(passed) > 0:  # its second token, and so everybody's next one
            wait_for(lambda: batcher.closed)

    cache = make_cache(model, 4096)
    batcher = kv.Batcher(model, cache, max_sessions=2)
    requests = [batcher.submit(PROMPTS[0], 1500, ignore_eos=True, logits_processors=until_it_closes)]
    requests += [batcher.submit(prompt, 1500, ignore_eos=True) for prompt in PROMPTS[1:]]
    read: list[list[int]] = []
    readers = [threading.Thread(target=lambda each=each: read.append(list(each))) for each in requests]
    for reader in readers:
        reader.start()
    next(iter(requests[0]))
    batcher.close()
    batcher.close()
    for reader in readers:
        reader.join(PATIENCE)
        assert not reader.is_alive()
    assert {request.finish_reason for request in requests} == {"cancelled"}
    assert len(read) == len(PROMPTS)
    assert batcher.closed
    assert batcher.stats()["waiting"] == batcher.stats()["active"] == 0
    with pytest.raises(kv.errors.ClosedError):
        batcher.submit(PROMPTS[0], 1)
    assert cache.stats()["sessions"] == 0
    cache.close()


def test_closing_from_within_a_step(model: Any) -> None:
    cache = make_cache(model)
    batcher = kv.Batcher(model, cache)
    request = batcher.submit(PROMPTS[0], COUNT, ignore_eos=True, logits_processors=lambda _t, _r: batcher.close())
    request.result(PATIENCE)
    assert request.finish_reason == "cancelled"
    batcher.close()
    cache.close()


def test_a_batcher_that_nobody_has_ends(model: Any) -> None:
    cache, gate = make_cache(model, 4096), Gate()
    batcher = kv.Batcher(model, cache)
    request = batcher.submit(PROMPTS[0], 1500, ignore_eos=True, logits_processors=gate)
    gone = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert gone() is None
    gate.open.set()
    request.result(PATIENCE)
    assert request.finish_reason == "cancelled"
    idle = kv.Batcher(model, cache)
    idle.submit(PROMPTS[0], 1).result(PATIENCE)
    thread = idle._driver._thread
    assert thread is not None
    del idle
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    cache.close()


def test_the_cache_is_closed_under_it(model: Any) -> None:
    cache = make_cache(model)
    with kv.Batcher(model, cache) as batcher:
        assert batcher.submit(PROMPTS[0], 1).result(PATIENCE)
        cache.close()
        with pytest.raises(kv.errors.ClosedError):
            batcher.submit(PROMPTS[0], 1).result(PATIENCE)


PROGRAM = """
import sys, threading
sys.path[:0] = {path!r}
import kvtrie as kv
from reference_llama import random_llama
model = kv.models.from_weights(*random_llama(11))
batcher = kv.Batcher(model, kv.PrefixCache(model.caches(capacity=4096, dtype="float32", warm_up=False)))
request = batcher.submit([1, 2, 3], 3000, ignore_eos=True)
next(iter(request))
"""


@pytest.mark.parametrize(
    "end", ["pass", *(pytest.param(end, marks=pytest.mark.ci) for end in ("sys.exit(3)", "raise KeyboardInterrupt"))]
)
def test_the_interpreter_ends_well(end: str) -> None:
    ended = run_python("-c", PROGRAM.format(path=[os.path.dirname(__file__)]) + end)
    wanted = {"pass": 0, "sys.exit(3)": 3}.get(end)
    assert ended.returncode == wanted if wanted is not None else ended.returncode in (1, -2, 130), ended.stderr
    assert "Fatal" not in ended.stderr


def test_a_forked_process_is_refused() -> None:
    fork = (
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        batcher.submit([1], 1)\n"
        "    except kv.errors.NotSupportedError:\n"
        "        batcher.close()\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "request.cancel(); request.result(600)\n"
    )
    ended = run_python("-c", PROGRAM.format(path=[os.path.dirname(__file__)]) + fork)
    assert ended.returncode == 0, ended.stderr


# --- arguments and pace -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stall": 0}, kv.errors.ArgumentError),
        ({"stall": float("nan")}, kv.errors.ArgumentError),
        ({"stall": "1"}, kv.errors.ArgumentTypeError),
        ({"stall": True}, kv.errors.ArgumentTypeError),
        ({"max_waiting": -1}, kv.errors.ArgumentError),
        ({"max_sessions": 0}, kv.errors.ArgumentError),
        ({"chunk": 1.5}, kv.errors.ArgumentTypeError),
    ],
)
def test_options(model: Any, options: Any, error: type[Exception]) -> None:
    cache = make_cache(model)
    with pytest.raises(error):
        kv.Batcher(model, cache, **options)
    cache.close()


@pytest.mark.parametrize("prompt", [[], "text", [[1], [2, 3]], [1.5], None])
def test_prompts_are_checked_where_they_are_submitted(model: Any, prompt: Any) -> None:
    cache = make_cache(model)
    with kv.Batcher(model, cache) as batcher, pytest.raises((kv.Error, AttributeError)):
        batcher.submit(prompt)
    assert batcher.stats()["submitted"] == 0
    cache.close()


def test_pace() -> None:
    """As many rows as fit into the stall, by what a row was measured to take; whole chunks where nobody decodes."""
    pace = Pace(256, 0.1)
    assert pace.rows(1, 0) == 256
    assert pace.rows(1, 3) == 32  # nothing is known yet
    for _ in range(5):
        pace.measured(0, 3, 0.02)
        pace.measured(100, 3, 0.12)
    assert pace.rows(1, 3) == 100
    assert pace.rows(2, 3) == 50
    assert pace.rows(50, 3) == 8  # all prompts go on
    for _ in range(20):
        pace.measured(100, 0, 0.001)
    assert pace.rows(1, 3) == 256
    assert Pace(256, None).rows(4, 4) == 256
    assert Pace(4, 0.1).rows(4, 4) == 4
