"""Requests of a batcher in event loops: text, back-pressure, and every way to leave one."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie._bell import Bell
from processes import PATIENCE, wait_for
from reference_llama import random_llama, save_checkpoint
from test_batch import COUNT, PROMPTS, SAMPLING, answers_alone
from test_batcher import Gate
from text_tokenizer import VOCAB, save_tokenizer

HELLO = [{"role": "user", "content": "hello"}]
LONG = 3000  # tokens, of answers that are left


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("text")
    save_checkpoint(folder, *random_llama(11, vocab=VOCAB, eos_token_id=VOCAB - 1))
    return kv.models.load(save_tokenizer(folder))


@pytest.fixture
def batcher(model: Any) -> Iterator[kv.Batcher]:
    cache = kv.PrefixCache(model.caches(capacity=8192, dtype="float32"), fingerprint=model.fingerprint)
    with kv.Batcher(model, cache) as batcher:
        yield batcher
        wait_for(lambda: batcher.stats()["active"] + batcher.stats()["waiting"] == 0)
    assert cache.stats()["sessions"] == 0
    assert cache.check() == []
    cache.close()


def sessions(batcher: kv.Batcher) -> int:
    return int(batcher._batch._cache.stats()["sessions"])


def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_loops_in_many_threads(model: Any, batcher: kv.Batcher) -> None:
    alone = answers_alone(model)
    found: list[Any] = []

    async def main() -> None:
        requests = [
            batcher.submit(prompt, COUNT, ignore_eos=True, **sampling) for prompt, sampling in zip(PROMPTS, SAMPLING)
        ]
        first = [token async for token in requests[0]]
        found.append([first, *await asyncio.gather(*requests[1:])])

    threads = [threading.Thread(target=run, args=(main,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def test_who_awaits_all_is_woken_once(batcher: kv.Batcher, monkeypatch: pytest.MonkeyPatch) -> None:
    rings = []
    ring = Bell.ring
    monkeypatch.setattr(Bell, "ring", lambda bell: rings.append(bell) or ring(bell))

    async def main() -> None:
        gate = Gate()
        reader = asyncio.ensure_future(batcher.submit(PROMPTS[0], COUNT, ignore_eos=True, logits_processors=gate))
        await reached(gate)  # the reader waits by now, and there is no token yet
        gate.open.set()
        assert len(await reader) == COUNT
        assert len(rings) == 1

    run(main)


def test_a_slow_reader_holds_up_nobody(batcher: kv.Batcher) -> None:
    """The request ends while its reader has read one token; the others are there when it goes on."""

    async def main() -> None:
        request = batcher.submit(PROMPTS[0], COUNT, ignore_eos=True)
        tokens = request.__aiter__()
        first = await tokens.__anext__()
        other = batcher.submit(PROMPTS[1], COUNT, ignore_eos=True)
        await asyncio.gather(asyncio.to_thread(request.result, PATIENCE), other)
        assert [first, *[token async for token in tokens]] == request.tokens
        with pytest.raises(StopAsyncIteration):
            await tokens.__anext__()

    run(main)


# --- text -------------------------------------------------------------------------------------------------------------


def test_text_is_that_of_a_reply(model: Any, batcher: kv.Batcher) -> None:
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 2, "ignore_eos": True}
    reply = model.chat(HELLO, **options)
    wanted = list(reply)

    async def main() -> None:
        answer = batcher.chat(HELLO, **options)
        assert [piece async for piece in answer] == wanted == list(answer)
        assert await answer == answer.result(PATIENCE) == answer.text_so_far == reply.text
        assert (answer.tokens, answer.prompt_tokens) == (reply.tokens, reply.prompt_tokens)
        assert answer.message == reply.message
        assert (answer.finish_reason, answer.error, answer.stopped_by) == ("length", None, None)
        told = f"20 tokens of an answer to {reply.prompt_tokens}, length, {answer.reused} reused"
        assert repr(answer) == f"<kvtrie.Request {told}>"
        both = await asyncio.gather(batcher.chat(HELLO, **options), batcher.complete("hello", 3, ignore_eos=True))
        assert both == [reply.text, model.complete("hello", max_tokens=3, ignore_eos=True).text]

    run(main)
    model.prefix_cache.close()


def test_stop_texts_are_no_part_of_it(model: Any, batcher: kv.Batcher) -> None:
    script = model.tokenizer.encode("one STOP two", add_special_tokens=False)

    def play(stop: Any) -> kv.Request[str]:
        rest = iter(script)

        def write(_tokens: Any, row: Any) -> None:
            row[:] = -np.inf
            row[next(rest)] = 0

        return batcher.complete("x", len(script), stop, logits_processors=write)

    async def main() -> None:
        for stop in ("STOP", ["never", "STOP"], (each for each in ("STOP", "never"))):
            answer = play(stop)
            assert "".join([piece async for piece in answer]) == await answer == "one "
            assert (answer.finish_reason, answer.stopped_by) == ("stop", "STOP")
        assert await play("two!") == "one STOP two", "what was held back comes when nothing follows"

    run(main)


def test_conversations_go_on_from_their_answers(model: Any, batcher: kv.Batcher) -> None:
    async def main() -> None:
        gate = Gate()
        first = batcher.chat(HELLO, 6, temperature=1.0, seed=5, ignore_eos=True, logits_processors=gate)
        with pytest.raises(kv.errors.BusyError):
            _ = first.message
        gate.open.set()
        await first
        again = batcher.chat([*HELLO, first.message, *HELLO], 1, ignore_eos=True)
        await again
        assert again.reused >= first.prompt_tokens + len(first.tokens) - 1
        assert batcher.chat([*HELLO], 1).prompt_tokens == len(model.chat_tokens(HELLO))

    run(main)


def test_models_that_cannot_chat() -> None:
    bare = kv.models.from_weights(*random_llama(11))
    with kv.Batcher(bare, bare.prefix_cache) as batcher:
        for ask in (lambda: batcher.chat(HELLO), lambda: batcher.complete("hello")):
            with pytest.raises(kv.errors.NotSupportedError, match="tokenizer"):
                ask()

    def own(step: Any) -> Any:
        return bare(step)

    with kv.Batcher(own, bare.prefix_cache) as batcher:
        with pytest.raises(kv.errors.ArgumentTypeError, match="chat_tokens"):
            batcher.chat(HELLO)
        with pytest.raises(kv.errors.ArgumentTypeError, match="tokenizer"):
            batcher.complete("hello")
    bare.prefix_cache.close()


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "in the middle", "after", "twice"])
@pytest.mark.parametrize("way", ["await", "async for", "text"])
def test_a_task_that_is_cancelled(batcher: kv.Batcher, when: str, way: str) -> None:
    async def read(request: Any) -> None:
        if way == "await":
            await request
        async for _ in request:
            pass

    async def main() -> None:
        gate = Gate()
        if when != "before":
            gate.open.set()
        length = 2 if when == "after" else LONG
        request: Any = (batcher.complete if way == "text" else batcher.submit)(
            "hello", length, ignore_eos=True, logits_processors=gate
        )
        task = asyncio.ensure_future(read(request))
        await reached(gate)
        if when == "after":
            await task
            assert not task.cancel()
        else:
            while when != "before" and not request.tokens:
                await asyncio.sleep(0)
            for _ in range(2 if when == "twice" else 1):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.open.set()
        await request.aclose()
        await request.aclose()
        assert request.finish_reason == ("length" if when == "after" else "cancelled")
        assert sessions(batcher) == 0

    run(main)


def test_a_time_limit_ends_it(batcher: kv.Batcher) -> None:
    async def main() -> None:
        gate = Gate()
        request = batcher.submit(PROMPTS[0], LONG, ignore_eos=True, logits_processors=gate)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.01)  # the gate is closed
        gate.open.set()
        assert len(await request) <= 1
        assert request.finish_reason == "cancelled"

    run(main)


def test_leaving_a_loop_or_a_block(batcher: kv.Batcher) -> None:
    async def main() -> None:
        async for _ in batcher.submit(PROMPTS[0], LONG, ignore_eos=True):
            break  # nobody has it any more
        async for _ in batcher.complete("hello", LONG, ignore_eos=True):
            break
        request = batcher.submit(PROMPTS[0], COUNT, ignore_eos=True)
        async for _ in request:
            break  # ends nothing
        assert len(await request) == COUNT
        async with batcher.submit(PROMPTS[0], LONG, ignore_eos=True) as request:
            await request.__aiter__().__anext__()
        assert request.finish_reason == "cancelled"
        async with batcher.complete("hello", LONG, ignore_eos=True) as answer:
            pass
        assert answer.finish_reason == "cancelled"
        gc.collect()

    run(main)
    wait_for(lambda: batcher.stats()["cancelled"] == 4)


def test_dropped_without_being_awaited(batcher: kv.Batcher) -> None:
    batcher.submit(PROMPTS[0], LONG, ignore_eos=True)
    batcher.chat(HELLO, LONG, ignore_eos=True)
    gc.collect()
    wait_for(lambda: batcher.stats()["cancelled"] == 2)


def test_one_that_fails(batcher: kv.Batcher) -> None:
    def raising(_tokens: Any, _row: Any) -> None:
        raise RuntimeError("mine")

    async def main() -> None:
        answer = batcher.chat(HELLO, COUNT, logits_processors=raising)
        reads: tuple[Any, ...] = (answer, batcher.submit(PROMPTS[0], COUNT, logits_processors=raising))
        for read in reads:
            with pytest.raises(RuntimeError, match="mine"):
                await read
            with pytest.raises(RuntimeError, match="mine"):
                async for _ in read:
                    pass
        assert (answer.finish_reason, str(answer.error)) == ("failed", "mine")
        await answer.aclose()  # no error of its own

    run(main)


def test_a_loop_that_is_closed_meanwhile(batcher: kv.Batcher, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody hears of the tokens that come then; the request goes on for whoever has it."""
    gate = Gate()
    request = batcher.submit(PROMPTS[0], COUNT, ignore_eos=True, logits_processors=gate)
    loop = asyncio.new_event_loop()
    task = loop.create_task(request._result())
    loop.run_until_complete(reached(gate))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with caplog.at_level(logging.DEBUG):
        gate.open.set()
        assert len(request.result(PATIENCE)) == COUNT
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    del task
    gc.collect()
    wait_for(lambda: request._published._listeners == {})  # the batcher's thread may still be telling its listeners


# --- the end of a batcher ---------------------------------------------------------------------------------------------


def test_closing_lets_the_loop_go_on(model: Any) -> None:
    async def main() -> None:
        gate = Gate()
        async with kv.Batcher(model, model.prefix_cache) as batcher:
            request = batcher.submit(PROMPTS[0], LONG, ignore_eos=True, logits_processors=gate)
            reader = asyncio.ensure_future(request)
            await reached(gate)
            closing = [asyncio.ensure_future(batcher.aclose()) for _ in range(2)]
            for _ in range(100):
                await asyncio.sleep(0)
            assert not any(each.done() for each in closing)  # the step is still under way
            closing[1].cancel()
            gate.open.set()
            await closing[0]
            assert len(await reader) == 1
            assert request.finish_reason == "cancelled"
            with pytest.raises(kv.errors.ClosedError):
                batcher.chat(HELLO)
        await batcher.aclose()
        async with kv.Batcher(model, model.prefix_cache) as unused:
            pass
        assert unused.closed

    run(main)
    assert model.prefix_cache.stats()["sessions"] == 0
    model.prefix_cache.close()


def test_the_cache_is_closed_under_it(model: Any) -> None:
    async def main() -> None:
        async with kv.Batcher(model) as batcher:
            await batcher.complete("hello", 1)
            model.prefix_cache.close()
            with pytest.raises(kv.errors.ClosedError):
                await batcher.complete("hello", 1)

    cache = model.prefix_cache
    run(main)
    assert cache.closed
