"""A model's kernels on a machine that never compiled them: a second process compiles beside this one, then behind it.

Concept. Compiling all that a model may launch takes several times as long as what its first token needs, and a driver
that compiles in a thread of this process holds up the steps of the others. So a helper, another Python, is started
before the weights are read. It knows the model's configuration and works in two stages:

    helper     [ attention ]  wait ............  [ everything, at the lowest priority; binaries ]
    here       weights, products  [ first step ] [ steps, launched ]               [ steps, replayed ]
                               ^ wait_for_attention                ^ go_on        ^ over

Programs go into the driver's cache and proofs into ours, so each process finds what the other one made. A step that
needs a program which the helper has not come to compiles it here. Until the helper is over, steps are launched
operation by operation, which gives the bits of replayed ones.

A file in the cache folder (``marker``) says that some helper went through to the end for a model of this kind, with
this build of the library on this device: then there is nothing to help with. Another one says it of the first stage:
then the helper begins with the second, behind the first step.

Ends. The helper exits at once when the pipe that it listens to is closed: by :func:`stop`, with the interpreter, and
when this process is killed; and after a minute without a first step. What it wrote until then is complete, since files
are renamed into place, and the next helper goes on from there. Helpers of two processes do not do the same work: the
second waits for a lock and finds it done. A helper prints nothing, inherits nothing but its two pipes, and Ctrl-C does
not reach it. Where none can be had, all is compiled here before the first step.

KVTRIE_HELPER=0 in the environment: no helper.

Threads: any. A helper is waited for by a thread of its own, so none stays behind as a zombie. Models of one kind in a
process share one.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _child, _kept
from .._core import Device
from .._locks import make_lock
from .config import ModelConfig
from .warmed import Warmed

SMALL = 256  # sizes that no kernel depends on: those of the vocabulary, of activations and within the MLP

_known: dict[Path, Helper] = {}  # that have something to do, by marker: models of one kind share one
_known_lock = make_lock()


def small(config: ModelConfig) -> ModelConfig:
    """A configuration whose model launches the same kernels and holds little."""
    sizes = {"hidden_size": SMALL, "intermediate_size": SMALL, "vocab_size": SMALL, "num_hidden_layers": 1}
    return dataclasses.replace(config, **sizes)  # type: ignore[arg-type]  # sizes are int


def kinds_of_storage(stored: Mapping[str, str]) -> dict[str, Any]:
    """Of tensors by name how they are stored: each kind of layer once, as numbered from 0, and what is in no layer."""
    layers: dict[str, dict[str, str]] = {}
    rest = {}
    for name, kind in sorted(stored.items()):
        in_layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if in_layer is None:
            rest[name] = kind
        else:
            layers.setdefault(in_layer[1], {})[in_layer[2]] = kind
    distinct = sorted({tuple(sorted(each.items())) for each in layers.values()})
    return {f"model.layers.{i}.{name}": kind for i, each in enumerate(distinct) for name, kind in each} | rest


def as_text(model: Warmed, dtype: str) -> str | None:
    """The settings that a helper needs; None for families with fields of their own."""
    if type(model.config) is not ModelConfig:
        return None
    config = small(model.config)
    told: dict[str, Any] = {"weights": model.dtype, "kv": dtype, "device": _name(model.device)}
    told["precision"] = model.precision
    if model.dtype == "stored":
        told["stored"] = kinds_of_storage(model._stored)
        layers = len({name.split(".")[2] for name in told["stored"] if name.startswith("model.layers.")})
        config = dataclasses.replace(config, num_hidden_layers=layers)
    told["config"] = dataclasses.asdict(config)
    return json.dumps(told, sort_keys=True)


def told_config(fields: dict[str, Any]) -> ModelConfig:
    """The configuration again."""
    return ModelConfig(**{**fields, "eos_token_ids": tuple(fields["eos_token_ids"])})


def _name(device: Device) -> str:
    return f"{device.platform} {device.name}"


def marker(model: Warmed, text: str) -> Path | None:
    """The file that says all this was compiled; None where nothing is kept."""
    return _kept.kept_file("models", text, model.device.driver, model.device.version)


class Helper:
    """A helper that runs, ran, or will. ``dtype``: of K and V."""

    def __init__(self, dtype: str, text: str, done: Path) -> None:
        self.dtype = dtype
        self._done = done
        self._over, self._attention = threading.Event(), threading.Event()
        self._command = _child.command("kvtrie.models.helper_child", text, str(done))
        self._process: subprocess.Popen[bytes] | None = None
        self._goes_on = False
        if first_of(done).exists():
            self._attention.set()

    def begin(self) -> None:
        """Starts the process, if it has something to do before the first step. A process that cannot start is over."""
        if not self._attention.is_set() and self._process is None and not self.over:
            self._start()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            threading.Thread(target=self._follow, name="kvtrie helper", daemon=True).start()
        except (OSError, RuntimeError, ValueError):
            self.stop()

    def _follow(self) -> None:
        """Hears how far it is, and waits for its end: of its last binaries, when it is over for everybody else."""
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.read(1)
        self._attention.set()
        self._process.stdout.read(1)
        self._over.set()
        self._process.wait()
        self._end()

    def _end(self) -> None:
        self._attention.set()
        self._over.set()
        with _known_lock:
            if _known.get(self._done) is self:
                del _known[self._done]

    @property
    def over(self) -> bool:
        """Whether nothing more is compiled: all is, or it ended before."""
        return self._over.is_set()

    @property
    def pid(self) -> int | None:
        """Of the process, once there is one."""
        return None if self._process is None else self._process.pid

    def wait_for_attention(self) -> None:
        """Returns when attention is compiled, or the helper over."""
        self._attention.wait()

    def attention_is_there(self) -> bool:
        """Whether :meth:`wait_for_attention` would not wait."""
        return self._attention.is_set()

    def go_on(self) -> None:
        """The first step was computed: now everything."""
        if self._goes_on:
            return
        self._goes_on = True
        if self._process is None and not self.over:
            self._start()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(b"g")
                self._process.stdin.flush()

    def join(self) -> None:
        """Lets it go on and waits until all is compiled, or it ended."""
        self.go_on()
        self._over.wait()

    def stop(self) -> None:
        """Ends it now."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
        self._end()


def first_of(done: Path) -> Path:
    """The file that says that the first stage is done."""
    return Path(f"{done}.first")


def helper_for(model: Warmed, dtype: str | None) -> Helper | None:
    """A helper; None where all is compiled already or none can be had."""
    if dtype is None or os.environ.get("KVTRIE_HELPER") == "0" or not _child.possible():
        return None
    if "Portable Computing Language" not in model.device.platform:  # others compile a kernel with its program
        return None
    text = as_text(model, dtype)
    done = None if text is None else marker(model, text)
    if text is None or done is None or done.exists():
        return None
    with _known_lock:
        helper = _known.setdefault(done, Helper(dtype, text, done))
    helper.begin()
    return helper


@atexit.register
def stop() -> None:
    """Ends all helpers."""
    with _known_lock:
        helpers = list(_known.values())
    for helper in helpers:
        helper.stop()
