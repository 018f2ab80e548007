"""Whole steps of models of known shapes: what they take, what of it the host, and which kernels take the rest.

``table``  device time by kernel of one decode step and of one prefill, on a device that keeps the times of launches; of
           the step also with a launch for each norm, each merge, and each rotation and store of q, k and v
``steps``  seconds of steps, and microseconds of the host until one is enqueued, on a device as everybody has it; with
           matrix instructions also of steps that are recorded and replayed as one launch

A decode step chooses its tokens on the device: 4 bytes come to the host for each conversation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
from gpu import shapes
from gpu.rows import ByKernel, Rows, by_kernel, in_order, is_gpu, open_device, table_lines
from timing import summarise

PREFILL = 512  # tokens
# What steps are also measured with in launches of its own; how a device is told so (0), and to do as usual (None).
APART: dict[str, Callable[[Any, int | None], None]] = {
    "norms": lambda device, most: device._norm_in_products(most),
    "merges": lambda device, most: device._merge_in_attention(most),
    "puts": lambda device, most: device._put_in_products(None if most is None else bool(most)),
}


class Talk:
    """Conversations of one model: ``history`` tokens each, in a cache of their own."""

    def __init__(self, model: Any, conversations: int, history: int) -> None:
        self.model = model
        random = np.random.default_rng(3)
        self.cache = kv.PrefixCache(model.caches(capacity=conversations * (history + 128), warm_up=False), host_bytes=0)
        self.sessions = []
        for _ in range(conversations):
            session = self.cache.begin(random.integers(1, model.config.vocab_size, history))
            for step in session.prefill():
                model(step)
            self.sessions.append(session)
        self.tokens = [1] * conversations

    def decode(self) -> float:
        """One step; microseconds until all of it was enqueued."""
        begun = time.perf_counter()
        for session, token in zip(self.sessions, self.tokens):
            session.append(token)
        chosen = kv.ops.argmax(self.model(self.cache.batch(self.sessions)))
        enqueued = time.perf_counter()
        self.tokens = [int(token) for token in chosen.numpy()]
        return 1e6 * (enqueued - begun)

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.cache.close()


def prefill(model: Any, tokens: int, seed: int) -> None:
    """Until the first token of a text that no cache knows."""
    random = np.random.default_rng(seed)
    cache = kv.PrefixCache(model.caches(capacity=tokens + 64, warm_up=False), host_bytes=0)
    with cache.begin(random.integers(1, model.config.vocab_size, tokens)) as session:
        for step in session.prefill():
            logits = model(step)
        kv.ops.argmax(logits).numpy()
    cache.close()


def _made(rows: Rows, name: str, device: Any) -> Any:
    begun = time.perf_counter()
    model = shapes.build(name, device)
    device.finish()
    built = time.perf_counter() - begun
    model.warm_up()
    seconds = time.perf_counter() - begun
    rows.say(
        f"{name}: made in {built:.1f} s, warm after {seconds:.1f} s",
        what="made",
        shape=name,
        seconds=built,
        warm=seconds,
    )
    return model


def _tell(rows: Rows, what: str, shape: str, launches: list[Any], **values: Any) -> None:
    """One table: printed in part, all of it in the row."""
    found = by_kernel(launches)
    whole = sum(row.us for row in found)
    span = (launches[-1][5] - launches[0][4]) / 1e3 if launches else 0.0
    title = f"{shape}, {what}: {len(launches)} launches, {whole:.0f} us in kernels, {span:.0f} us from first to last"
    rows.say(
        "\n".join([title, *table_lines(found), in_order(launches)]),
        what=what,
        shape=shape,
        launches=len(launches),
        device_us=whole,
        span_us=span,
        kernels=[list(row) for row in found],
        columns=list(ByKernel._fields),
        order=[[each[0], (each[5] - each[4]) / 1e3] for each in launches],
        **values,
    )


def table(rows: Rows) -> None:
    """Device time by kernel."""
    device = open_device(times=True)
    names = ("135m", "8b") if is_gpu(device) else ("emulated", "emulated deep")
    for name in names:
        rows.attempt(name, lambda name=name: _table_of(rows, device, name))


def _table_of(rows: Rows, device: Any, name: str) -> None:
    model = _made(rows, name, device)
    for conversations in (1, 8):
        talk = Talk(model, conversations, PREFILL if is_gpu(device) else 40)
        for _ in range(3):
            talk.decode()
        device._take_launch_times()
        talk.decode()
        _tell(rows, f"decode of {conversations}", name, device._take_launch_times(), conversations=conversations)
        for what, told in APART.items():
            told(device, 0)
            talk.decode()
            device._take_launch_times()
            talk.decode()
            apart = f"decode of {conversations}, {what} apart"
            _tell(rows, apart, name, device._take_launch_times(), conversations=conversations)
            told(device, None)
        talk.close()
    tokens = PREFILL if is_gpu(device) else 40
    prefill(model, tokens, 1)
    device._take_launch_times()
    prefill(model, tokens, 2)
    _tell(rows, f"prefill of {tokens}", name, device._take_launch_times(), tokens=tokens)


def steps(rows: Rows) -> None:
    """Seconds, host and whole."""
    device = open_device(times=False)
    names = ("135m", "1b", "8b") if is_gpu(device) else ("emulated", "emulated deep")
    for name in names:
        rows.attempt(name, lambda name=name: _steps_of(rows, device, name))


def _steps_of(rows: Rows, device: Any, name: str) -> None:
    model = _made(rows, name, device)
    tokens = PREFILL if is_gpu(device) else 40
    found = []
    for seed in range(4):
        begun = time.perf_counter()
        prefill(model, tokens, seed)
        found.append(time.perf_counter() - begun)
    us = 1e6 * min(found[1:])
    rows.say(f"{name}: prefill of {tokens}: {us:.0f} us", what="prefill", shape=name, tokens=tokens, us=us)
    for conversations in (1, 8, 64) if is_gpu(device) else (1, 3):
        # Long histories of many are left to the part `attention`: here they would take longer to compute than to read.
        talk = Talk(model, conversations, tokens if conversations == 1 else 64)
        _decode(rows, device, name, talk)
        for what, told in APART.items() if conversations <= 8 else ():
            told(device, 0)
            _decode(rows, device, f"{name}, {what} apart", talk)
            told(device, None)
        if conversations <= 8 and device._has_matrix_instructions():
            _decode_in_one_launch(rows, device, name, talk)
        talk.close()


def _decode_in_one_launch(rows: Rows, device: Any, name: str, talk: Talk) -> None:
    """The same step recorded and replayed; where it cannot be recorded, a row with the reason."""
    model = talk.model
    device._step_in_one_launch(True)
    begun = time.perf_counter()
    talk.decode()  # recorded, compiled, proved
    seconds, stats = time.perf_counter() - begun, model.graphs.stats
    recorded = stats["graphs"] > 0
    rows.say(
        f"{name}, one launch: {'recorded' if recorded else 'not recorded: ' + stats['reason']}, {seconds:.1f} s",
        what="one launch",
        shape=name,
        conversations=len(talk.sessions),
        recorded=recorded,
        reason=stats["reason"],
        seconds=seconds,
    )
    if recorded:
        _decode(rows, device, f"{name}, one launch", talk)
    device._step_in_one_launch(None)
    model.graphs = kv.ops.StepGraphs()  # later steps are launched again


def _decode(rows: Rows, device: Any, name: str, talk: Talk) -> None:
    conversations, before = len(talk.sessions), 0
    whole, host = [], []
    for index in range(40 if is_gpu(device) else 6):
        if index == 5:
            whole, host, before = [], [], device.memory()["launches"]
        begun = time.perf_counter()
        host.append(talk.decode())
        whole.append(1e6 * (time.perf_counter() - begun))
    launches = (device.memory()["launches"] - before) / len(whole)
    step, enqueued = summarise(whole), summarise(host)
    rows.say(
        f"{name}: decode of {conversations:2}: {step.median:8.0f} us ({step.low:.0f} to {step.high:.0f}), host "
        f"{enqueued.median:.0f} us until enqueued, {launches:.0f} launches",
        what="decode",
        shape=name,
        conversations=conversations,
        us=step.median,
        low=step.low,
        high=step.high,
        host_us=enqueued.median,
        launches=launches,
    )
