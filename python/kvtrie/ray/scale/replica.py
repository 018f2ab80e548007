"""A replica: the whole server of kvtrie.serve, in a process that Ray keeps.

Ray's calls: ``answer`` for each request, ``record_routing_stats`` and ``record_autoscaling_stats`` about once a second,
``check_health``, and at its end ``__del__``, when the requests that it had are answered. Then it writes what its disk
lacks and waits for what is on its way to the store, so that the next one begins with it.

A replica that was killed leaves its folder to the next on its machine: what was in files is found again.
Threads: ``answer`` and ``__del__`` run in one event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from ...errors import ArgumentError, ClosedError
from ...serve.app import create_app
from ...serve.opening import Opened, ServeOptions, open_server
from .asgi_call import Answer, Call, Head, answered
from .summaries import RoutingStats, Summaries

_log = logging.getLogger("kvtrie.ray.scale")


class Replica:
    """``engine``: as in ``ScaleOptions``."""

    def __init__(self, options: ServeOptions, engine: str | None = None) -> None:
        opened = open_server(options) if engine is None else _imported(engine)(options)
        settings = replace(opened.settings, kept_responses=0)  # the next request may come to another replica
        self._app = create_app(opened.model, opened.cache, opened.name, settings)
        self._engine = self._app.state.engine
        self._summaries = Summaries(opened.cache)
        self._calls: weakref.WeakSet[_UnderWay] = weakref.WeakSet()
        _log.info("a replica of %s, its state is kept in %s", opened.name, opened.folder)

    async def answer(self, call: Call) -> Answer:
        """See ``asgi_call.answered``."""
        mine, parts = _UnderWay(), answered(self._app, call)
        try:
            self._calls.add(mine)
            async for part in parts:
                if isinstance(part, Head) and part.status == 200:
                    self._summaries.answered(call.fingerprints)
                yield part
        finally:
            self._calls.discard(mine)
            await parts.aclose()

    async def record_routing_stats(self) -> RoutingStats:
        """The report to routers (summaries.py)."""
        waiting = self._engine.batcher.stats()["waiting_tokens"]
        return await asyncio.to_thread(self._summaries.stats, waiting, len(self._calls))

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Tokens of prompts that are to be computed (autoscaling.py)."""
        return {"waiting_tokens": float(self._engine.batcher.stats()["waiting_tokens"])}

    def check_health(self) -> None:
        """Raises where it cannot answer any more: Ray then starts another in its place."""
        if self._engine.batcher.closed or self._engine.cache.closed:
            raise ClosedError("[scale] this replica is closed")

    async def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            await asyncio.to_thread(engine.close)


class _UnderWay:
    """A request that is being answered, for as long as its answer is there: whoever drops that ends it."""


def _imported(path: str) -> Callable[[ServeOptions], Opened]:
    module, _, name = path.partition(":")
    try:
        return cast(Callable[[ServeOptions], Opened], getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"[scale] engine: got {path!r}, allowed module:function: {error}") from error
