"""A fleet without a cluster: the ingress, one replica and the router in this process, with as much of Ray as they see.

A :class:`Fleet` is a house (serve_ways.py) whose requests go through an ingress to a replica. What Ray does in between
is here: a call of the replica is a task of its own, whose error is a ``RayError`` for its reader; reading only part of
it ends nothing, ``cancel`` does. A :class:`Desk` is a router of up to seven replicas, and what Ray tells it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any, Callable, Optional

import numpy as np
from ray.exceptions import RayError
from ray.serve.request_router import RequestRouter
from starlette.requests import Request

from kvtrie.ray.scale.asgi_call import Call
from kvtrie.ray.scale.ingress import Ingress
from kvtrie.ray.scale.prompt_keys import PromptKeys
from kvtrie.ray.scale.replica import Replica
from kvtrie.ray.scale.router import Router
from kvtrie.serve.opening import Opened, ServeOptions
from serve_ways import House

_made: list[Opened] = []


def opened(_: ServeOptions) -> Opened:
    """What the next replica is made of."""
    return _made.pop()


class Fleet(House):
    """See above."""

    def made(self, settings: Any) -> Any:
        _made.append(Opened(self.model, "naming", self.cache, settings, None))
        self.replica: Any = Replica(ServeOptions(), "fleet_ways:opened")
        keys = PromptKeys(self.model.tokenizer)
        self.ingress = Ingress(_Handle(self.replica), ServeOptions(), keys, attempts=2)  # type: ignore[arg-type]
        return _Front(self.ingress, self.replica._app.state)

    def left_over(self) -> str:
        wrong = super().left_over()
        stats = self.loop.run_until_complete(self.replica.record_routing_stats())
        if not wrong and (stats["requests"] or stats["waiting"]):
            return f"routers are told of {stats['requests']} requests and {stats['waiting']} tokens"
        return wrong


class _Front:
    """An application of which the ingress answers everything."""

    def __init__(self, ingress: Ingress, state: Any) -> None:
        self._ingress, self.state = ingress, state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self._ingress(Request(scope, receive))
        await response(scope, receive, send)


class _Handle:
    """Of a deployment that has one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def options(self, **_: Any) -> _Handle:
        return self

    def remote(self, call: Call) -> _Stream:
        return _Stream(self._replica, call)


class _Stream:
    """What a call gives."""

    def __init__(self, replica: Replica, call: Call) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(replica, call))

    async def _run(self, replica: Replica, call: Call) -> None:
        end: Any = StopAsyncIteration()
        try:
            async for part in replica.answer(call):
                self._queue.put_nowait(part)
        except BaseException as error:  # of another process
            end = RayError(repr(error))
        finally:
            self._queue.put_nowait(end)

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Any:
        part = await self._queue.get()
        if isinstance(part, BaseException):
            raise part
        return part

    def cancel(self) -> None:
        self._task.cancel()


# ---- the router ------------------------------------------------------------------------------------------------------


class _Router(Router):
    """Without what is Ray's own."""

    def __init__(self) -> None:
        self.initialize_state(seed=1, candidates=2)

    @property
    def replica_queue_len_cache(self) -> Any:
        return SimpleNamespace(get=lambda _: None)


class Desk:
    """Random events of a router, each of which is told again where it was interrupted, as Ray does."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._numbers = itertools.count(1)
        RequestRouter.update_replicas = lambda *_: None  # type: ignore[method-assign]
        RequestRouter.on_replica_actor_died = lambda *_: None  # type: ignore[method-assign]
        self.router = _Router()
        self.replicas: dict[str, Any] = {}
        self.under_way: list[tuple[Any, str]] = []

    def event(self) -> Callable[[], None]:
        """What happens next; to be called until it was not interrupted."""
        kinds = [self._summary, self._summary, self._leaves, self._asked, self._asked, self._asked, self._done]
        return self._dice.choice(kinds)()

    def _summary(self) -> Callable[[], None]:
        """A replica has a new one, or is new."""
        name = self._dice.choice("abcdefg")
        known = np.array([self._dice.randrange(40) for _ in range(12)], "<u4")
        stats = {"version": next(self._numbers), "known": known.tobytes(), "waiting": self._dice.randrange(99)}
        self.replicas[name] = SimpleNamespace(replica_id=name, routing_stats=stats)
        return self._told

    def _told(self) -> None:
        self.router.update_replicas(list(self.replicas.values()))

    def _leaves(self) -> Callable[[], None]:
        if len(self.replicas) < 2:
            return self._summary()
        name = self._dice.choice(sorted(self.replicas))
        del self.replicas[name]
        self.under_way = [each for each in self.under_way if each[1] != name]
        if self._dice.random() < 0.5:
            return self._told
        return lambda: self.router.on_replica_actor_died(name)  # type: ignore[arg-type]

    def _asked(self) -> Callable[[], None]:
        if not self.replicas:
            return self._summary()
        call = Call("POST", "/", b"", (), b"", "", 640, tuple(self._dice.randrange(40) for _ in range(10)))
        names = SimpleNamespace(internal_request_id=str(next(self._numbers)))
        pending = SimpleNamespace(args=(call,), metadata=names, routing_context=SimpleNamespace())
        room = self._dice.choice(sorted(self.replicas))

        def asked() -> None:
            chosen = asyncio.run(self.router.choose_replicas(list(self.replicas.values()), pending))  # type: ignore[arg-type]
            name = chosen[0][0].replica_id if self._dice.random() < 0.7 else room
            self.router.on_request_routed(pending, name, None)  # type: ignore[arg-type]
            self.under_way.append((pending, name))

        return asked

    def _done(self) -> Callable[[], None]:
        if not self.under_way:
            return self._summary()
        pending, name = self.under_way.pop(self._dice.randrange(len(self.under_way)))
        request = pending.metadata.internal_request_id
        return lambda: self.router.on_request_completed(name, request)  # type: ignore[arg-type]

    def wrong(self) -> str:
        """What the router has that does not follow from what it was told, once all is told anew."""
        for name, each in self.replicas.items():
            stats = {**each.routing_stats, "version": next(self._numbers)}
            self.replicas[name] = SimpleNamespace(replica_id=name, routing_stats=stats)
        self._told()
        router, known = self.router, {}
        for name, each in self.replicas.items():
            known[name] = frozenset(np.frombuffer(each.routing_stats["known"], "<u4").tolist())
            waits = router._policy.ledger.load(router._seen[name])  # type: ignore[union-attr,index]
            if waits != each.routing_stats["waiting"]:
                return f"{waits} tokens wait at {name}, told were {each.routing_stats['waiting']}"
        for fingerprint in range(40):
            holders = sorted(router._index.holders(fingerprint))  # type: ignore[type-var]
            if holders != sorted(name for name, own in known.items() if fingerprint in own):
                return f"{holders} have {fingerprint}, told were {known}"
        if len(router._index._held) != len(known) or len(router._seen) != len(known):
            return f"the router remembers {sorted(router._seen)}, there are {sorted(known)}"  # type: ignore[type-var]
        return ""


# ---- Ray's batches ---------------------------------------------------------------------------------------------------


def worker_of(scoring: bool, errors: Optional[str] = None) -> Any:
    """An actor's object, over a model whose every token names the text before it."""
    import ray_models
    from kvtrie.ray.engine import Engine
    from kvtrie.ray.workers import Answering, Scoring, Work, Writing

    work = Work("ray", "generated", errors, "default", 2, 16)
    if scoring:
        return Scoring(Engine(ray_models.naming, {}), work, "prompt", "choices")
    return Answering(Engine(ray_models.naming, {}), work, Writing(2, None, False, {}, None))


def table_of() -> Any:
    """Three rows, of which two begin alike."""
    import pyarrow

    from kvtrie.ray.prompts import KEY, Prompts, encode

    prompts = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 11], [20, 21]]
    rows = pyarrow.table({"prompt": prompts, "choices": [[[1, 2], [3]]] * len(prompts)})
    return encode(rows, Prompts("ray", "prompt", None, {}, ("generated",), keeps_errors=False)).sort_by(KEY)
