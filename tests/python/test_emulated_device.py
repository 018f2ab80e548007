"""A device that emulates another one: what is chosen for it, and that answers stay the same."""

from __future__ import annotations

import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import kvtrie as kv
from kvtrie import _devices
from processes import run_python

ANSWER = """
import json
import kvtrie as kv
device = kv.Device()
model = kv.models.load("examples/tiny")
cache = kv.PrefixCache(model.caches(capacity=256, warm_up=False))
with cache.begin([5, 6, 7, 8, 9]) as session:
    tokens = list(kv.generate(model, session, max_tokens=12, ignore_eos=True))
print(json.dumps({"kind": device.kind, "name": device.name, "tokens": tokens, "fp16": device.capabilities["fp16"]}))
"""


@cache
def answer(emulation: str) -> dict[str, Any]:
    done = run_python("-c", ANSWER, environment={"KVTRIE_EMULATED_DEVICE": emulation})
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Each emulation of a GPU compiles kernels that nothing else has.
EMULATED = ["accelerator", pytest.param("gpu", marks=pytest.mark.ci)]
EMULATED += [
    pytest.param(emulation, marks=pytest.mark.soak)
    for emulation in ("gpu small no_fp16", "gpu late", "gpu kernel_lanes=32")
]


@pytest.mark.parametrize("emulation", EMULATED)
def test_an_emulated_device_answers_the_same(emulation: str, device: Any) -> None:
    plain, emulated = answer(""), answer(emulation)
    assert emulated["tokens"] == plain["tokens"]
    assert emulated["kind"] == emulation.split()[0]
    assert emulated["name"] == f"{plain['name']} (as {emulation})"
    assert not ("no_fp16" in emulation and emulated["fp16"])


LOGITS = """
import hashlib, json, sys
import numpy as np
import kvtrie as kv
told = {}
for dtype in sys.argv[1].split():
    model = kv.models.load("examples/tiny", dtype=dtype)
    cache = kv.PrefixCache(model.caches(capacity=64, warm_up=False))
    digest = hashlib.sha256()
    with cache.begin([5, 3071, 2048, 0, 9]) as session:
        logits = None
        for step in session.prefill():
            logits = model(step).numpy()
        for _ in range(4):
            digest.update(logits.tobytes())
            session.append(int(logits.argmax()))
            logits = model(session.decode()).numpy()
    told[dtype] = [digest.hexdigest(), isinstance(model._embedding, tuple), isinstance(model._head.weight, tuple)]
print(json.dumps(told))
"""


@pytest.mark.parametrize(
    ("kind", "dtypes"),
    [
        ("", "float16"),
        pytest.param("", "float32 q8_0 q4_0", marks=pytest.mark.soak),
        pytest.param("gpu ", "float16 q8_0 q4_0", marks=pytest.mark.soak),  # whole, float32 there goes through CLBlast
    ],
)
def test_weights_larger_than_a_buffer_are_split(kind: str, dtypes: str, device: Any) -> None:
    """The tiny model's embedding takes a megabyte and its gate and up 400 kB; the bits are those of whole ones."""
    found = []
    for emulation in (kind, f"{kind}max_alloc_bytes=200000"):
        done = run_python("-c", LOGITS, dtypes, environment={"KVTRIE_EMULATED_DEVICE": emulation})
        assert (done.returncode, done.stderr) == (0, "")
        found.append(json.loads(done.stdout))
    for dtype in dtypes.split():
        whole, split = found[0][dtype], found[1][dtype]
        assert whole[0] == split[0], dtype
        assert (whole[1:], split[1:]) == ([False, False], [True, True]), dtype


PRECISIONS = """
import json, warnings
import kvtrie as kv
from fakes import DictStore
warnings.simplefilter("ignore")  # kernels by matrix instructions are tried, and are not used
store, told = DictStore(), []
tokens = list(range(5, 85))  # more than the 64 that a store is asked for
for precision in ("fast", "auto", "fast"):
    model = kv.models.load("examples/tiny", dtype="float16", precision=precision)

    def of(session):
        logits = None
        for step in session.prefill(chunk=30):
            logits = model(step).numpy()
        return logits.tobytes().hex()

    def opened(**options):
        caches = model.caches(capacity=256, warm_up=False)
        return kv.PrefixCache(caches, fingerprint=model.fingerprint, **options)

    with opened(host_bytes=0) as cache, cache.begin(tokens) as session:
        cold = of(session)
    with opened(store=store) as cache:
        with cache.begin(tokens) as session:
            reused, first = session.reused, of(session)
        cache.flush()
        with cache.begin(tokens) as session:
            again, second = session.reused, of(session)
    told.append([model.fingerprint, reused, again, cold == first, cold == second])
print(json.dumps(told))
"""


@pytest.mark.ci
def test_precisions_of_a_gpu_with_matrix_instructions_share_nothing() -> None:
    """What one wrote to a store answers it and not the other; cached and cold runs have the same bits."""
    emulation = {"KVTRIE_EMULATED_DEVICE": "gpu compute_capability=90"}
    done = run_python("-c", PRECISIONS, environment=emulation)
    assert done.returncode == 0, done.stderr
    fast, auto, later = json.loads(done.stdout)
    assert fast[0] == later[0] != auto[0]
    assert (fast[1], auto[1]) == (0, 0)
    assert later[1] == fast[2] == auto[2] > 0
    assert all(told[3:] == [True, True] for told in (fast, auto, later))


def test_a_pose_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRIE_EMULATED_DEVICE", "gpu tiny")
    with pytest.raises(kv.errors.ArgumentError, match=r"\[KVTRIE_EMULATED_DEVICE\] word: got \"tiny\", allowed gpu, "):
        kv.devices()


def test_gpus_come_first_and_accelerators_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intel's FPGA emulator is an accelerator, and slower than the processor that it runs on."""

    def found(index: int, kind: str, units: int) -> Any:
        return SimpleNamespace(
            index=index, kind=kind, name=f"{kind} {index}", platform="P", capabilities={"compute_units": units}
        )

    there = [found(0, "accelerator", 64), found(1, "cpu", 2), found(2, "cpu", 8)]
    monkeypatch.setattr(_devices._core, "devices", lambda: there)
    assert _devices._best("", "name").index == 2
    there.append(found(3, "gpu", 1))
    assert _devices._best("", "name").index == 3
    assert _devices._best("accelerator", "name").index == 0
