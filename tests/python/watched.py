"""Caches to be watched, and a comm that keeps what a kernel would send to a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie import viz

try:
    import anywidget
    import comm
    from comm.base_comm import BaseComm
except ImportError:
    anywidget, BaseComm = None, object

needs_anywidget = pytest.mark.skipif(anywidget is None, reason="anywidget is not installed")

COMMON = list(range(1, 11))


class Wire(BaseComm):
    """Keeps every message; `broken`: what sending raises."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.broken: Exception | None = None
        super().__init__(**options)

    def publish_msg(self, msg_type: str, data: Any = None, **_: Any) -> None:
        if self.broken is not None:
            raise self.broken
        self.sent.append((msg_type, data))


@contextmanager
def wired() -> Iterator[None]:
    """Widgets made meanwhile talk through a `Wire`, as in a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "create_comm", Wire)
        yield


def compute(step: Any) -> Any:
    """The model of one layer: K and V name their tokens."""
    x = np.repeat(step.tokens.astype(np.float32), 8).reshape(-1, 1, 8)
    return step.attend(0, x, x, x)


def make_cache(**options: Any) -> kv.PrefixCache:
    options.setdefault("host_bytes", "1MiB")
    return kv.PrefixCache([kv.caches.CausalCache([0], 1, 8, 256, dtype="float32")], **options)


def fill(cache: kv.PrefixCache, *tokens: int, namespace: str = "default") -> None:
    """A conversation that begins with ``COMMON``, computed and closed."""
    with cache.begin(COMMON + list(tokens), namespace) as session:
        for step in session.prefill():
            compute(step)


def shown(watched: viz.Watch) -> dict[str, Any]:
    """The picture that its page has."""
    front = watched._front
    assert front is not None
    return dict(front.state)


def say(watched: viz.Watch, **message: Any) -> None:
    """What a page of it sends."""
    front = watched._front
    assert front is not None
    front.comm.handle_msg({"content": {"data": {"method": "custom", "content": message}}, "buffers": []})


def row(watched: viz.Watch, start: int, end: int) -> str:
    """The name of the node of these tokens."""
    title = f"tokens {start:,} to {end:,}"
    return next(name for name, fields in shown(watched)["rows"].items() if fields["title"] == title)
