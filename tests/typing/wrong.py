"""What type checkers have to refuse. Each line has its error: where one sees none, it calls the comment unused."""

from __future__ import annotations

import numpy as np

import kvtrie as kv
from kvtrie import ops


def conversations(cache: kv.PrefixCache, session: kv.Session, step: kv.Step) -> None:
    cache.begin("a text")  # type: ignore[arg-type]
    cache.begin([1, 2], atomic=[1, 2])  # type: ignore[list-item]
    cache.begin([1.5])  # type: ignore[list-item]
    cache.begin([1], reuse=True)  # type: ignore[call-arg]
    cache.batch(session)  # type: ignore[arg-type]
    cache.explain([1], decode=5)  # type: ignore[arg-type]
    cache.set_quota("anna", most={"cell": 5})  # type: ignore[arg-type]
    cache.closed = True  # type: ignore[misc]
    session.append("a")  # type: ignore[arg-type]
    session.rewind("3")  # type: ignore[arg-type]
    session.shift(limit=3)  # type: ignore[call-arg]
    print(session.lenght)  # type: ignore[attr-defined]
    step.attend("0", np.zeros(3))  # type: ignore[arg-type]
    step.put(0, np.zeros(3))  # type: ignore[call-arg]
    kv.PrefixCache(5)  # type: ignore[arg-type]
    kv.PrefixCache(kv.caches.CausalCache(1, 1, 8, 8), polycy="lru")  # type: ignore[call-arg]
    kv.caches.CausalCache(1, 1, 8)  # type: ignore[call-arg]
    kv.media(5, 1)  # type: ignore[arg-type]


def answers(model: kv.models.Model, session: kv.Session, batcher: kv.Batcher) -> None:
    kv.generate(model, session, temprature=1.0)  # type: ignore[call-arg]
    kv.generate(model, 5)  # type: ignore[arg-type]
    kv.generate(lambda: None, session)  # type: ignore[arg-type, misc]
    model.chat("hello")  # type: ignore[arg-type]
    model.chat([], max_token=5)  # type: ignore[call-arg]
    model.complete(5)  # type: ignore[arg-type]
    batcher.submit("a", temperature="hot")  # type: ignore[arg-type]
    batcher.chat("hello")  # type: ignore[arg-type]
    batcher.stats()["active"].upper()  # type: ignore[attr-defined]
    kv.Sampling(temperature="hot")  # type: ignore[arg-type]
    kv.score(model, "a", 5)  # type: ignore[arg-type]


async def awaited(request: kv.Request[int], answer: kv.Request[str], generation: kv.Generation[int]) -> None:
    number: int = await request  # type: ignore[assignment]
    tokens: list[int] = await answer  # type: ignore[assignment]
    text: str = await generation  # type: ignore[assignment]
    async for piece in answer:
        number = piece  # type: ignore[assignment]
    request.aclose().upper()  # type: ignore[attr-defined]
    print(number, tokens, text)


class NoStore:
    def get(self, key: str) -> bytes:
        return key.encode()


def others(tensor: kv.Tensor) -> None:
    kv.PrefixCache(kv.caches.CausalCache(1, 1, 8, 8), store=NoStore())  # type: ignore[arg-type]
    tensor[0]  # type: ignore[index]
    ops.matmul_gated(np.zeros(3), np.zeros(3))  # type: ignore[arg-type]
    ops.rms_norm(tensor, tensor)  # type: ignore[call-arg]
    kv.replay.simulate("trace", None)  # type: ignore[arg-type]
    kv.Device(5)  # type: ignore[arg-type]
    print(kv.nothing)  # type: ignore[attr-defined]
