"""``async for`` and ``await`` over generations and replies: the tokens of ``for``, and every ending is an end."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.awaited import Apart, Left
from processes import PATIENCE, run_python, wait_for
from reference_llama import random_llama, save_checkpoint
from test_batch import make_cache
from text_tokenizer import VOCAB, save_tokenizer

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
COUNT = 8
HELLO = [{"role": "user", "content": "hello"}]


class GatedModel:
    """Waits in each step until the gate is open; counts its steps, and raises what it is told to, once."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.reached, self.open = threading.Event(), threading.Event()
        self.steps = 0
        self.raises: BaseException | None = None

    def __call__(self, step: Any) -> Any:
        self.steps += 1
        self.reached.set()
        assert self.open.wait(PATIENCE)
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        return self.model(step)


@pytest.fixture(scope="module")
def plain() -> Any:
    return kv.models.from_weights(*random_llama(11))


@pytest.fixture
def model(plain: Any) -> Iterator[GatedModel]:
    gated = GatedModel(plain)
    yield gated
    gated.open.set()  # no thread stays behind a test that failed


@pytest.fixture
def cache(plain: Any) -> Iterator[kv.PrefixCache]:
    with make_cache(plain) as cache:
        yield cache
        wait_for(lambda: cache.stats()["sessions"] == 0)
        assert cache.check() == []


@pytest.fixture(scope="module")
def alone(plain: Any) -> list[int]:
    with make_cache(plain) as cache, cache.begin(PROMPT) as session:
        return list(kv.generate(plain, session, COUNT, ignore_eos=True))


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


async def reached(model: GatedModel) -> None:
    assert await asyncio.to_thread(model.reached.wait, PATIENCE)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def begun(model: Any, session: kv.Session, **options: Any) -> kv.Generation[int]:
    return kv.generate(model, session, COUNT, ignore_eos=True, **options)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_the_tokens_of_a_plain_loop(plain: Any, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        for way in ("async for", "await", "both"):
            with cache.begin(PROMPT) as session:
                generation = begun(plain, session)
                if way == "async for":
                    tokens = [token async for token in generation]
                elif way == "await":
                    tokens = await generation
                else:
                    tokens = [next(generation), await generation.__anext__(), next(generation), *await generation]
                assert tokens == alone == generation.tokens
                assert (generation.finish_reason, [token async for token in generation]) == ("length", [])

    run(main)


def test_the_loop_goes_on_while_a_step_is_computed(model: GatedModel, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        with cache.begin(PROMPT) as session:
            waiting = asyncio.ensure_future(begun(model, session))
            await reached(model)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            model.open.set()
            assert await waiting == alone

    run(main)


def test_nothing_is_computed_ahead(model: GatedModel, cache: Any) -> None:
    model.open.set()

    async def main() -> None:
        with cache.begin(PROMPT) as session:
            generation = begun(model, session)
            assert model.steps == 0
            async for _ in generation:
                break
            assert (model.steps, len(generation.tokens)) == (1, 1)
            await generation.aclose()
            assert (model.steps, session.closed) == (1, False)

    run(main)


def test_loops_in_many_threads(plain: Any, cache: Any, alone: list[int]) -> None:
    found: list[list[int]] = []

    async def main() -> None:
        with cache.begin(PROMPT) as session:
            found.append(await begun(plain, session))

    threads = [threading.Thread(target=run, args=(main,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


# --- ends -------------------------------------------------------------------------------------------------------------


def test_cancelled_before_the_first_token_and_continued(model: GatedModel, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        with cache.begin(PROMPT) as session:
            generation = begun(model, session)
            for _ in range(2):  # twice, in the same step
                task = asyncio.ensure_future(generation)
                await reached(model)
                await asyncio.sleep(0)
                await cancelled(task)  # at once: the step still waits
            model.open.set()
            assert await generation == alone
            assert model.steps == COUNT

    run(main)


def test_cancelled_in_a_prompt_stops_behind_the_chunk(model: GatedModel, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        with cache.begin(PROMPT) as session:
            generation = begun(model, session, chunk=2)
            task = asyncio.ensure_future(generation)
            await reached(model)
            await cancelled(task)
            model.open.set()
            await generation.aclose()
            assert (model.steps, list(session.remaining), generation.tokens) == (1, PROMPT[2:], [])
            assert generation.finish_reason == "closed"
            assert list(begun(model, session)) == alone  # the session is the caller's, and goes on

    run(main)


def test_cancelled_in_the_middle_loses_nothing(model: GatedModel, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        model.open.set()
        with cache.begin(PROMPT) as session:
            generation = begun(model, session)
            tokens = [await generation.__anext__() for _ in range(3)]
            model.open.clear()
            model.reached.clear()
            task = asyncio.ensure_future(generation.__anext__())
            await reached(model)
            await cancelled(task)
            model.open.set()
            wait_for(lambda: generation._has_more)  # else this thread would compute beside the other one
            assert [*tokens, next(generation), *await generation] == alone

    run(main)


def test_cancelled_after_the_last_token(plain: Any, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        with cache.begin(PROMPT) as session:
            generation = begun(plain, session)
            task = asyncio.ensure_future(generation)
            assert await task == alone
            assert not task.cancel()
            await generation.aclose()
            await generation.aclose()
            assert generation.finish_reason == "length"

    run(main)


def test_a_time_limit_ends_the_wait_only(model: GatedModel, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        with cache.begin(PROMPT) as session:
            generation = begun(model, session)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(generation.__anext__(), 0.01)  # the gate is closed
            model.open.set()
            assert await generation == alone

    run(main)


def test_one_task_at_a_time(model: GatedModel, cache: Any) -> None:
    async def main() -> None:
        with cache.begin(PROMPT) as session:
            generation = begun(model, session, chunk=2)
            first = asyncio.ensure_future(generation)
            await reached(model)
            with pytest.raises(kv.errors.BusyError, match="another task"):
                await generation
            closing = [asyncio.ensure_future(generation.aclose()) for _ in range(2)]
            await asyncio.sleep(0)
            model.open.set()
            await asyncio.gather(*closing)
            with pytest.raises(kv.errors.ClosedError):
                await first
            assert [token async for token in generation] == []

    run(main)


def test_what_the_model_raises(model: GatedModel, cache: Any, alone: list[int]) -> None:
    async def main() -> None:
        model.open.set()
        with cache.begin(PROMPT) as session:
            generation = begun(model, session)
            tokens = [await generation.__anext__()]
            model.raises = kv.errors.DeviceError("[test] the device failed")
            with pytest.raises(kv.errors.DeviceError):
                await generation
            assert [*tokens, *await generation] == alone

    run(main)


def test_the_session_or_the_cache_is_closed_under_it(model: GatedModel, plain: Any) -> None:
    async def main(what: str) -> None:
        cache = make_cache(plain)
        session = cache.begin(PROMPT)
        waiting = asyncio.ensure_future(begun(model, session))
        await reached(model)
        if what == "session":
            session.close()
        else:
            cache.close()
        model.open.set()
        with pytest.raises(kv.errors.ClosedError):
            await waiting
        if what == "session":
            assert cache.stats()["sessions"] == 0 and cache.check() == []
        cache.close()

    for what in ("session", "cache"):
        asyncio.run(main(what))
        model.open.clear()
        model.reached.clear()


def test_a_loop_that_is_closed_meanwhile(
    model: GatedModel, cache: Any, alone: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def wait() -> None:
        await reached(model)

    with cache.begin(PROMPT) as session:
        generation = begun(model, session)
        loop = asyncio.new_event_loop()
        task = loop.create_task(generation.__anext__())
        loop.run_until_complete(wait())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        with caplog.at_level(logging.DEBUG):
            model.open.set()
            wait_for(lambda: len(generation.tokens) == 1)
            assert run(generation._rest) == alone
        assert [record for record in caplog.records if record.name == "concurrent.futures"] == []
        del task


def test_dropped_without_being_awaited(model: GatedModel, cache: Any, plain: Any) -> None:
    """No warnings, as those are errors here; its own session ends with it, also in the middle of a step."""
    plain_generation = kv.Generation
    own = GatedModel(plain)
    own.prefix_cache = cache  # type: ignore[attr-defined]

    async def drop(when: str) -> weakref.ref[kv.Generation[int]]:
        generation = kv.generate(own, PROMPT, COUNT, ignore_eos=True)
        assert isinstance(generation, plain_generation)
        if when == "between":
            own.open.set()
            await generation.__anext__()
        elif when == "in a step":
            own.open.clear()
            own.reached.clear()
            task = asyncio.ensure_future(generation.__anext__())
            await reached(own)
            await cancelled(task)
            own.open.set()
        return weakref.ref(generation)

    for when in ("at once", "between", "in a step"):
        gone = asyncio.run(drop(when))
        gc.collect()
        wait_for(lambda gone=gone: gone() is None)  # type: ignore[misc]
        wait_for(lambda: cache.stats()["sessions"] == 0)


def test_an_end_that_comes_while_work_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of the interpreter does: the work learns that nobody waits for it, and `join` does not wait for all."""
    apart = Apart()
    ending = threading.Thread(target=apart.join)
    ask = apart._ask

    def slowly(*asked: Any) -> None:
        ask(*asked)
        ending.start()
        wait_for(lambda: apart._left)

    def work() -> None:
        wait_for(lambda: apart.left)
        raise Left

    monkeypatch.setattr(apart, "_ask", slowly)
    with pytest.raises(kv.errors.ClosedError):
        asyncio.run(apart.run(work))
    ending.join(PATIENCE)
    with pytest.raises(kv.errors.ClosedError):
        asyncio.run(Apart.run(apart, work))  # and it is told so from then on
    assert apart._left


# --- replies ----------------------------------------------------------------------------------------------------------


def test_replies(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *random_llama(11, vocab=VOCAB, eos_token_id=VOCAB - 1))
    model = kv.models.load(save_tokenizer(tmp_path))
    wanted = model.chat(HELLO, max_tokens=COUNT, ignore_eos=True).text

    async def main() -> None:
        assert await model.chat(HELLO, max_tokens=COUNT, ignore_eos=True) == wanted
        async with model.chat(HELLO, max_tokens=COUNT, ignore_eos=True) as reply:
            assert "".join([piece async for piece in reply]) == wanted
            assert [piece async for piece in reply] == []
        async with model.chat(HELLO, max_tokens=COUNT, ignore_eos=True) as reply:
            async for piece in reply:
                assert reply.text_so_far == piece
                break
        assert (reply.finish_reason, reply.text, await reply) == ("closed", piece, piece)
        assert model.chat(HELLO).finish_reason is None  # dropped

    run(main)
    assert model.prefix_cache.stats()["sessions"] == 0
    assert model.prefix_cache.check() == []
    model.prefix_cache.close()


# --- processes --------------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, os, signal, threading, time
import kvtrie as kv
from reference_llama import random_llama
plain = kv.models.from_weights(*random_llama(11))
cache = kv.PrefixCache(plain.caches(capacity=512, dtype="float32", warm_up=False))
session = cache.begin(list(range(1, 60)))
"""

INTERRUPTED = """
async def main():
    async for token in kv.generate(plain, session, 400, ignore_eos=True):
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    session.close()
    assert cache.check() == [] and cache.stats()["sessions"] == 0
    print("interrupted")
"""

PENDING = """
steps, begun = [], threading.Event()
generation = kv.generate(plain, session, 5, chunk=1)
def model(step):
    steps.append(step)
    begun.set()
    while not generation._apart.left:  # so that the end of the interpreter finds it in its first step
        time.sleep(0.001)
    os.write(1, b"step ")
    return plain(step)
model.config = plain.config
async def main():
    try:
        await generation
    except kv.errors.ClosedError:
        pass
generation._decoding._model = model
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
assert begun.wait(600)
"""

FORKED = """
async def first():
    return await generation.__anext__()
generation = kv.generate(plain, session, 5, ignore_eos=True)
asyncio.run(first())
child = os.fork()
if child == 0:
    try:
        asyncio.run(first())
    except kv.errors.NotSupportedError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(asyncio.run(generation._rest())) == 4
print("forked")
"""


@pytest.mark.parametrize(("end", "says"), [(INTERRUPTED, "interrupted\n"), (PENDING, "step "), (FORKED, "forked\n")])
def test_processes_end_well(end: str, says: str) -> None:
    ended = run_python("-W", "error", "-c", PROGRAM + end)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, says, "")
