"""Generating: one at a time, several in a step, from threads and in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import kvtrie as kv

MESSAGES = [{"role": "user", "content": "hello"}]


def penalize(tokens: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    logits[tokens[-1]] = -np.inf
    return logits


def own_model(step: kv.Step) -> npt.NDArray[np.float32]:
    return np.zeros((len(step.sessions), 10), np.float32)


def progress(done: int, total: int) -> None:
    print(done, total)


def one(model: kv.models.Model, session: kv.Session) -> None:
    for token in kv.generate(model, session, 8, 0.7, ["\n", 5], ignore_eos=True, top_k=3, top_p=0.9, min_p=0.1):
        assert_type(token, int)
    kv.generate(own_model, session, ignore_eos=True, typical_p=0.5, repetition_penalty=1.1, presence_penalty=0.1)
    kv.generate(model, "a text", frequency_penalty=0.1, logit_bias={3: -1.0}, logits_processors=[penalize], seed=1)
    kv.generate(model, np.array([1, 2]), chunk=64, logprobs=2, logits=None, progress=progress)


def read_generation(generation: kv.Generation[int]) -> None:
    assert_type(generation.tokens, list[int])
    assert_type(generation.logprobs, list[kv.results.TokenLogprob])
    assert_type(generation.finish_reason, str | None)
    assert_type(generation.stopped_by, int | str | None)
    assert_type(generation.seconds_to_first, float | None)
    assert_type(generation.session, kv.Session | None)
    assert_type(generation.text + generation.text_so_far, str)
    assert_type(next(generation), int)
    generation.close()


async def await_generation(generation: kv.Generation[int]) -> None:
    async with generation as tokens:
        async for token in tokens:
            assert_type(token, int)
    assert_type(await generation, list[int])
    await generation.aclose()


def read_reply(reply: kv.Generation[str]) -> None:
    for piece in reply:
        assert_type(piece, str)
    assert_type(reply.text + reply.text_so_far + str(reply), str)
    assert_type(reply.message, dict[str, str])
    assert_type(reply.tokens, list[int])
    assert_type(reply.logprobs, list[kv.results.TokenLogprob])
    assert_type(reply.prompt_tokens + reply.reused, int)
    assert_type(reply.reason, kv.results.Reason)
    if reply.beginning is not None:
        assert_type(reply.beginning.matched, int)
    assert_type(reply.finish_reason, str | None)
    assert_type(reply.seconds_to_first, float | None)
    with reply:
        reply.close()


async def await_reply(reply: kv.Generation[str]) -> str:
    async with reply as pieces:
        async for piece in pieces:
            assert_type(piece, str)
    await reply.aclose()
    return await reply


def several(model: kv.models.Model, cache: kv.PrefixCache) -> None:
    with kv.Batch(model, cache, max_sessions=4, chunk=64) as batch:
        use_batch(batch)
    made = kv.generate_batch(model, ["a", [1, 2]], 8, cache=cache, max_sessions=2, chunk=64, temperature=0.5)
    assert_type(made, list[kv.Generation[int]])


def use_batch(batch: kv.Batch) -> None:
    assert_type(batch.add("a text", 8, stop="\n", namespace="anna", checkpoints=[3], seed=1), kv.Generation[int])
    while batch.step():
        assert_type(len(batch) + batch.max_sessions, int)
    batch.close()


def use_batcher(batcher: kv.Batcher) -> None:
    request = batcher.submit([1, 2], 8, None, ignore_eos=True, namespace="anna", checkpoints=(1,), top_k=2)
    assert_type(request, kv.Request[int])
    assert_type(batcher.chat(MESSAGES, 8, tools=[], template={"enable_thinking": False}), kv.Request[str])
    assert_type(batcher.complete("a text", 8, "\n", temperature=1.0), kv.Request[str])
    assert_type(batcher.stats(), dict[str, int])
    assert_type(batcher.closed, bool)
    with batcher:
        batcher.close()


async def await_batcher(model: kv.models.Model) -> None:
    async with kv.Batcher(model, None, max_sessions=2, chunk=64, max_waiting=9, stall=None) as batcher:
        both = await asyncio.gather(batcher.submit("a"), batcher.complete("b"))
        assert_type(both, tuple[list[int], str])
        await await_batcher_end(batcher)


async def await_batcher_end(batcher: kv.Batcher) -> None:
    await batcher.aclose()


def read_request(request: kv.Request[int]) -> None:
    for token in request:
        assert_type(token, int)
    assert_type(request.tokens + request.result(timeout=1.0), list[int])
    assert_type(request.logprobs, list[kv.results.TokenLogprob])
    assert_type(request.prompt_logprobs, list[kv.results.RankedLogprob])
    assert_type(request.prompt_tokens + request.reused, int)
    if request.beginning is not None:
        assert_type(request.beginning.matched + request.beginning.reused, int)
        assert_type((request.beginning.tier, request.beginning.reason), tuple[str, kv.results.Reason])
    assert_type(request.uncomputed, int)
    assert_type(request.text_so_far + request.reason, str)
    assert_type(request.finish_reason, str | None)
    assert_type(request.error, BaseException | None)
    assert_type(request.stopped_by, int | str | None)
    with request:
        request.cancel()


async def await_request(request: kv.Request[int], answer: kv.Request[str]) -> str:
    async with request, answer:
        async for token in request:
            assert_type(token, int)
        async for piece in answer:
            assert_type(piece, str)
    assert_type(await request, list[int])
    await request.aclose()
    await answer.aclose()
    return await answer


def read_text_request(answer: kv.Request[str]) -> None:
    for piece in answer:
        assert_type(piece, str)
    assert_type(answer.result(1.0) + answer.text_so_far, str)
    assert_type(answer.message, dict[str, str])
    assert_type(answer.tokens, list[int])
    assert_type(answer.logprobs, list[kv.results.TokenLogprob])
    assert_type(answer.prompt_tokens + answer.reused, int)
    assert_type(answer.finish_reason, str | None)
    assert_type(answer.error, BaseException | None)
    assert_type(answer.stopped_by, int | str | None)
    with answer:
        answer.cancel()


def choose(logits: npt.NDArray[np.float32]) -> int:
    sampling = kv.Sampling(
        temperature=0.7,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        typical_p=1.0,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={1: 2.0},
        logits_processors=(penalize,),
        seed=7,
        logprobs=3,
    )
    sampler = kv.Sampler(sampling, vocab_size=10)
    return sampler(logits, 3, lambda: np.array([1, 2, 3], np.int32), 0).token


def read_sampling(sampling: kv.Sampling, sampler: kv.Sampler) -> None:
    assert_type(sampler.sampling, kv.Sampling)
    assert_type(sampling.on_device, bool)
    assert_type(sampling.edits_logits, bool)
    assert_type(sampling.seed, int | None)


def read_logprob(logprob: kv.results.TokenLogprob) -> None:
    assert_type(logprob.token, int)
    assert_type(logprob.logprob, float)
    assert_type(logprob.top, list[tuple[int, float]])


def judge(model: kv.models.Model, cache: kv.PrefixCache, choices: Sequence[str]) -> list[kv.results.Score]:
    return kv.score(model, "a text", choices, cache=cache)


def read_score(score: kv.results.Score) -> None:
    assert_type(score.tokens, list[int])
    assert_type(score.logprobs, list[float])
    assert_type(score.greedy, bool)
    assert_type(score.logprob, float)


def compare_formats(model: kv.models.Model) -> kv.results.Quality:
    kv.quality("path", "a text", dtypes=["stored", "q8_0"], kv_dtypes=["float16"], windows=2, device="cpu")
    return kv.quality(model, [1, 2, 3], context=512, progress=progress)


def read_quality(found: kv.results.Quality) -> None:
    assert_type((found.model, found.device), tuple[str, str])
    assert_type((found.context, found.windows, found.positions), tuple[int, int, int])
    assert_type(found.formats, tuple[kv.results.FormatQuality, ...])
    assert_type(found.reference, kv.results.FormatQuality)
    found.plot("found.svg")


def read_format_quality(each: kv.results.FormatQuality) -> None:
    assert_type((each.dtype, each.kv_dtype), tuple[str, str])
    assert_type((each.kl, each.kl_tail, each.agreement), tuple[float, float, float])
    assert_type((each.perplexity, each.perplexity_change, each.perplexity_error), tuple[float, float, float])
    assert_type((each.weight_bytes, each.token_bytes), tuple[int, int])
    assert_type((each.prompt_speed, each.step_speed), tuple[float, float])
