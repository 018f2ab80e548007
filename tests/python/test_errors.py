"""Bad input: a typed error that names the argument, and nothing has changed afterwards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import DIM, KV_HEADS, CodingModel, compute, make_cache, run, state_of
from processes import run_python

pytestmark = pytest.mark.usefixtures("nothing_left_over")

TOKENS = list(range(100, 120))
VALUE, TYPE = kv.errors.ArgumentError, kv.errors.ArgumentTypeError


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One cache for all calls here: each has to leave it as it was. Its store is on the host."""
    cache = make_cache(64, device="host", host_bytes="64KiB")
    run(cache, TOKENS, CodingModel())
    yield cache
    cache.close()


def refused(cache: Any, error: type[Exception], match: str, call: Callable[[], Any]) -> Any:
    before = state_of(cache)
    with pytest.raises(error, match=match) as info:
        call()
    assert isinstance(info.value, kv.Error)
    assert state_of(cache) == before
    assert cache.check() == []
    return info.value


# ---- the family ------------------------------------------------------------------------------------------------------


def test_every_error_is_an_error_of_ours_and_of_pythons() -> None:
    bases = {
        kv.errors.ArgumentError: ValueError,
        kv.errors.ArgumentTypeError: TypeError,
        kv.errors.CacheFullError: MemoryError,
        kv.errors.NotRestorableError: ValueError,
        kv.errors.NotSupportedError: Exception,
        kv.errors.DeviceError: Exception,
        kv.errors.FormatError: Exception,
        kv.errors.ClosedError: Exception,
        kv.errors.BusyError: Exception,
        kv.errors.InternalError: Exception,
    }
    for error, base in bases.items():
        assert issubclass(error, kv.Error)
        assert issubclass(error, base)
        assert error.__doc__
    assert (kv.errors.CacheFullError("x").needed, kv.errors.NotRestorableError("x").nearest) == (0, -1)
    full = kv.errors.CacheFullError("x")
    full.needed = 3
    assert pickle.loads(pickle.dumps(full)).needed == 3


# ---- tokens ----------------------------------------------------------------------------------------------------------

BAD_TOKENS = [
    ([], VALUE, r"tokens: got 0, allowed at least 1"),
    (np.zeros(0, np.int32), VALUE, r"tokens: got 0"),
    ([1, -1], VALUE, r"tokens\[1\]: got -1, allowed 0 to 2147483647"),
    (np.array([3, 4, -5], np.int32), VALUE, r"tokens\[2\]: got -5, allowed 0 to 2147483647"),
    (np.array([-5], np.int8), VALUE, r"tokens\[0\]: got -5"),
    ([2**31], VALUE, r"tokens\[0\]: got 2147483648, allowed -2147483648 to 2147483647"),
    ([2**70], VALUE, r"tokens\[0\]: got an integer beyond 64 bits"),
    (np.array([2**31], np.uint32), VALUE, r"tokens\[0\]: got 2147483648"),
    (np.array([1, 2**63], np.uint64), VALUE, r"tokens\[1\]"),
    ([1, 2.0], TYPE, r"tokens\[1\]: got 2\.0 \(float\), allowed integers"),
    ([1, True], TYPE, r"tokens\[1\]: got True \(bool\)"),
    ([1, None], TYPE, r"tokens\[1\]: got None"),
    ([[1, 2]], TYPE, r"tokens\[0\]"),
    (np.array([1.0]), TYPE, r"tokens: got an array of float64, allowed an array of integers"),
    (np.array([True]), TYPE, r"tokens: got an array of bool"),
    (np.array([[1, 2]]), TYPE, r"tokens: got an array of rank 2, allowed rank 1"),
    (np.array([[1]], np.int32), TYPE, r"tokens: got an array of rank 2"),
    (np.int32(5), TYPE, r"tokens: got .*allowed"),
    (5, TYPE, r"tokens: got 5 \(int\), allowed a sequence or array of integers"),
    ("text", TYPE, r"tokens: got 'text' \(str\)"),
    (b"bytes", TYPE, r"tokens: got b'bytes' \(bytes\)"),
    (None, TYPE, r"tokens: got None"),
    ({1: 2}, TYPE, r"tokens: got \{1: 2\} \(dict\)"),
    ({1, 2}, TYPE, r"tokens: got \{1, 2\} \(set\)"),
    ((n for n in (1, 2)), TYPE, r"tokens: got <generator"),
    (list(range(65)), VALUE, r"tokens: got 65, allowed 64"),
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "error", "match"), BAD_TOKENS)
def test_tokens_of_begin(shared: Any, tokens: Any, error: type[Exception], match: str) -> None:
    refused(shared, error, r"\[begin\] " + match, lambda: shared.begin(tokens))


def test_a_negative_token_is_found_wherever_it_stands(shared: Any) -> None:
    # Prompts are read in blocks: every length up to the third block, every place.
    for length in range(1, 50):
        for place in range(length):
            tokens = np.full(length, 2**31 - 1, np.int32)
            tokens[place] = -(2**31)
            with pytest.raises(kv.errors.ArgumentError, match=rf"tokens\[{place}\]: got -2147483648"):
                shared.begin(tokens)


@pytest.mark.parametrize("call", ["plan", "restore", "pin", "unpin", "page_out", "evict"])
@pytest.mark.parametrize("tokens", [[-1], [1.5], "text", np.array([[1]]), 5])
def test_tokens_of_the_others(shared: Any, call: str, tokens: Any) -> None:
    refused(shared, kv.Error, r"tokens", lambda: getattr(shared, call)(tokens))


@pytest.mark.parametrize("tokens", [-1, 2**31, 1.0, True, None, "a", [1, -1], [0.5], np.array([[1]]), list(range(50))])
def test_tokens_of_append(shared: Any, tokens: Any) -> None:
    with shared.begin(TOKENS) as session:
        before = list(session.tokens)
        refused(shared, kv.Error, "tokens", lambda: session.append(tokens))
        assert list(session.tokens) == before


# ---- other arguments of the prefix cache -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda c: c.begin([1], namespace=5), TYPE, r"\[begin\] namespace: got 5"),
        (lambda c: c.begin([1], None), TYPE, r"\[begin\] namespace: got None"),
        (lambda c: c.begin([1], "\ud800"), VALUE, r"\[begin\] namespace"),
        (lambda c: c.plan([1], namespace=b"x"), TYPE, r"\[plan\] namespace"),
        (lambda c: c.batch([]), VALUE, r"\[batch\] sessions: got none"),
        (lambda c: c.batch(5), TYPE, r"\[batch\] sessions"),
        (lambda c: c.batch([5]), TYPE, r"\[batch\] sessions"),
        (lambda c: c.page_out(), VALUE, r"\[page_out\] tokens, nbytes: got neither"),
        (lambda c: c.page_out([1], 5), VALUE, r"\[page_out\] tokens, nbytes: got both"),
        (lambda c: c.page_out([1], to="cloud"), VALUE, r"\[page_out\] to: got 'cloud', allowed 'host'"),
        (lambda c: c.page_out(nbytes=-1), VALUE, r"\[page_out\] nbytes: got -1"),
        (lambda c: c.page_out(nbytes="much"), VALUE, r"page_out nbytes"),
        (lambda c: c.page_out(nbytes=1.5), TYPE, r"\[page_out\] nbytes"),
        (lambda c: c.evict(), VALUE, r"\[evict\] tokens, nbytes: got neither"),
        (lambda c: c.evict(nbytes=2**62), kv.errors.CacheFullError, r"\[evict\] nbytes"),
        (lambda c: pickle.dumps(c), TYPE, r"\[pickle\]"),
        (lambda c: copy.copy(c), TYPE, r"\[pickle\]"),
    ],
)
def test_other_arguments(shared: Any, call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    refused(shared, error, match, lambda: call(shared))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"host_bytes": -1}, VALUE, "host_bytes: got -1"),
        ({"host_bytes": "lots"}, VALUE, "host_bytes"),
        ({"host_bytes": 1.5}, TYPE, "host_bytes"),
        ({"growth": -1}, VALUE, "growth: got -1"),
        ({"growth": "a"}, TYPE, "growth"),
        ({"checkpoint_every": 0}, VALUE, "checkpoint_every: got 0"),
        ({"checkpoint_every": 1.5}, TYPE, "checkpoint_every"),
        ({"policy": "fifo"}, VALUE, "policy: got 'fifo', allowed lru, slru"),
        ({"fingerprint": 5}, TYPE, "fingerprint"),
        ({"quotas": 5}, TYPE, "quotas: got int"),
        ({"disk_after": 0}, VALUE, "disk_after: got 0"),
        ({"clock": 5}, TYPE, "clock"),
        ({"disk": "/tmp/kvtrie"}, VALUE, "fingerprint: got ''"),
        ({"disk": "/tmp/kvtrie", "fingerprint": "w", "host_bytes": 0}, VALUE, "host_bytes: got 0"),
        ({"disk": 5}, TypeError, "int"),
        ({"load": "never"}, VALUE, "load: got 'never'"),
        ({"store": "ftp://somewhere"}, VALUE, "url"),
        ({"store": 5}, TYPE, "store"),
    ],
)
def test_making_a_prefix_cache(options: dict[str, Any], error: type[Exception], match: str) -> None:
    layers = kv.caches.CausalCache(1, 1, 8, 4, device="host")
    with pytest.raises(error, match=match):
        kv.PrefixCache(layers, **options)
    kv.PrefixCache(layers)  # it still belongs to nobody


def test_caches_of_a_prefix_cache() -> None:
    one, two = (kv.caches.CausalCache([layer], 1, 8, 4, device="host") for layer in (0, 1))
    other = kv.caches.CausalCache([1], 1, 8, 4, device="host")
    for wrong, error in (
        ([two, other], VALUE),
        (5, TYPE),
        ([one, 5], TYPE),
        (None, TYPE),
        ([one, one], VALUE),
    ):
        with pytest.raises(error, match="caches"):
            kv.PrefixCache(wrong)
    taken = kv.PrefixCache([one, two])
    assert taken.caches == [one, two]
    for again in (one, [other.__class__([5], 1, 8, 4, device="host"), one]):
        with pytest.raises(VALUE, match="belongs to a prefix cache"):
            kv.PrefixCache(again)
    taken.close()
    kv.PrefixCache([two, one])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((1, 1, 8, 0), {}, VALUE, "capacity: got 0"),
        ((1, 1, 8, -4), {}, VALUE, "capacity: got -4"),
        ((1, 1, 8, 2**31), {}, VALUE, "capacity"),
        ((1, 1, 8, 4.0), {}, TYPE, "capacity"),
        ((0, 1, 8, 4), {}, VALUE, "layers: got 0"),
        (([], 1, 8, 4), {}, VALUE, "layers: got none"),
        (([1, 1], 1, 8, 4), {}, VALUE, "layers: got 1 twice"),
        (([-1], 1, 8, 4), {}, VALUE, r"layers\[0\]: got -1"),
        (("ab", 1, 8, 4), {}, TYPE, "layers"),
        ((1, 0, 8, 4), {}, VALUE, "kv_heads: got 0"),
        ((1, 1, 0, 4), {}, VALUE, "head_dim: got 0"),
        ((1, 1, True, 4), {}, TYPE, "head_dim"),
        ((1, 1, 8, 4), {"v_head_dim": -1}, VALUE, "v_head_dim"),
        ((1, 1, 8, 4), {"latent_dim": 9}, VALUE, "latent_dim: got 9, allowed up to 8"),
        ((1, 1, 8, 4), {"latent_dim": 4, "v_head_dim": 4}, VALUE, "v_head_dim: got 4, allowed 0 with latent_dim"),
        ((1, 1, 8, 4), {"latent_dim": 4, "rope": {}}, VALUE, "rope: got 8 rotated dims, allowed up to 4"),
        ((1, 1, 8, 4), {"latent_dim": 4, "rope": {"dims": 6}}, VALUE, "rope: got 6 rotated dims, allowed up to 4"),
        ((1, 1, 8, 4), {"dtype": "int32"}, VALUE, "dtype: got int32, allowed float32, float16, q8_0 or q4h"),
        ((1, 1, 8, 4), {"dtype": "float8"}, TYPE, "dtype: got float8, allowed float32, float16, q8_0 or q4h"),
        ((1, 1, 8, 4), {"dtype": None}, TYPE, "dtype"),
        ((1, 1, 8, 4), {"rope": {"bass": 1.0}}, VALUE, "rope: got the key 'bass'"),
        ((1, 1, 8, 4), {"rope": {"dims": 9}}, VALUE, "dims"),
        ((2, 1, 8, 4), {"rope": [{}, {}, {}]}, VALUE, "rope: got 3"),
        ((1, 1, 8, 4), {"rope": 5}, TYPE, "rope"),
        ((1, 1, 8, 4), {"device": 5}, TYPE, "device"),
        ((1, 1, 8, 4), {"device": "no such device"}, VALUE, "no such device"),
        ((1, 1, 8, 4), {"window": 0}, VALUE, r"window: got 0 .*allowed 1"),
        ((1, 1, 8, 4), {"chunk": "2"}, TYPE, "chunk"),
        ((1, 1, 8, 4), {"window": 3, "memory": 2}, VALUE, "memory: got 2, allowed 3"),
        ((1, 1, 8, 4), {"chunk": 3, "memory": 4}, VALUE, "memory: got 4, allowed none with chunks"),
        ((1, 1, 8), {}, TYPE, r"\[CausalCache\] arguments: got \(int, int, int, device=str\), allowed \(layers"),
    ],
)
def test_making_a_causal_cache(arguments: Any, options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kv.caches.CausalCache(*arguments, **{"device": "host", **options})


def test_a_pool_too_large_for_the_device_fails_when_it_is_made(device: Any) -> None:
    with pytest.raises(kv.Error, match="bytes"):
        kv.caches.CausalCache(64, 64, 256, 2**31 - 1, device=device)


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["device", "host"])
def open_step(request: pytest.FixtureRequest, device: Any) -> Iterator[Any]:
    cache = make_cache(64, device=device if request.param == "device" else "host")
    with cache.begin(TOKENS) as session:
        yield cache, session, session.decode()


def rows(count: int, heads: int = KV_HEADS, dim: int = DIM) -> Any:
    return np.ones((count, heads, dim), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda s: s.put(2, rows(20), rows(20)), VALUE, "layer: got 2, allowed"),
        (lambda s: s.put(-1, rows(20), rows(20)), VALUE, "layer: got -1"),
        (lambda s: s.put("0", rows(20), rows(20)), TYPE, "layer"),
        (lambda s: s.put(0, rows(19), rows(20)), VALUE, "k: got shape"),
        (lambda s: s.put(0, rows(20), rows(20, heads=1)), VALUE, "v: got shape"),
        (lambda s: s.put(0, rows(20).reshape(20, -1), rows(20)), VALUE, "k: got shape"),
        (lambda s: s.put(0, rows(20).astype(np.int32), rows(20)), TYPE, "k: got dtype int32"),
        (lambda s: s.put(0, "k", rows(20)), TYPE, "k: got"),
        (lambda s: s.put(0, None, rows(20)), TYPE, "k: got"),
        (lambda s: s.put(0, rows(20).astype(bool), rows(20)), TYPE, "k: got an array of bool"),
        (lambda s: s.attend(2, rows(20), rows(20), rows(20)), VALUE, "layer: got 2"),
        (lambda s: s.attend(0, rows(20, heads=3), rows(20), rows(20)), VALUE, "q: got shape"),
        (lambda s: s.attend(0, rows(20, dim=3), rows(20), rows(20)), VALUE, "q: got shape"),
        (lambda s: s.attend(0, rows(20)[0], rows(20), rows(20)), VALUE, "q: got"),
        (lambda s: s.attend(0, rows(20), rows(20), rows(20)[:5]), VALUE, "v: got shape"),
        (lambda s: s.attend(0, rows(20), rows(20), rows(20), scale=0), VALUE, "scale: got 0"),
        (lambda s: s.attend(0, rows(20), rows(20), rows(20), scale="1"), TYPE, "scale"),
        (lambda s: s.attend(0, rows(20), rows(20), rows(20), softcap=-2), VALUE, "softcap"),
        (lambda s: s.attend(0, rows(20), rows(20), rows(20), sinks=np.ones(3)), VALUE, "sinks"),
        (lambda s: s.attend(0, rows(20)), VALUE, "layer: got 0, which was not put"),
        (lambda s: s.get(0), VALUE, "layer: got 0, which was not put"),
        (lambda s: s.get(9), VALUE, "layer: got 9"),
        (lambda s: pickle.dumps(s), TYPE, "pickle"),
    ],
)
def test_a_step(open_step: Any, call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    cache, session, step = open_step
    refused(cache, error, match, lambda: call(step))
    assert not step.complete
    CodingModel()(step)  # nothing was stored, so it can still be completed
    assert session.length == 20
    with pytest.raises(VALUE, match="already"):
        step.put(0, rows(20), rows(20))


def test_tensors_of_another_place(device: Any) -> None:
    on_host, on_device = (kv.tensor(rows(20), device=place) for place in ("host", device))
    for place, wrong in ((device, on_host), ("host", on_device)):
        cache = make_cache(64, device=place)
        with cache.begin(TOKENS) as session:
            step = session.decode()
            refused(cache, kv.Error, "k", lambda: step.put(0, wrong, wrong))  # noqa: B023


# ---- closed, full, missing -------------------------------------------------------------------------------------------


def test_use_after_close() -> None:
    cache = make_cache(64, device="host")
    session = cache.begin(TOKENS)
    step = session.decode()
    session.close()
    session.close()
    assert session.closed
    assert (session.reused, session.matched, session.reason, session.tier) == (0, 0, "", "none")
    uses = (
        lambda: session.tokens,
        lambda: session.remaining,
        lambda: session.append(1),
        lambda: session.decode(),
        lambda: session.branch(),
        lambda: session.rewind(0),
        lambda: session.can_rewind(0),
        lambda: session.checkpoint(),
        lambda: next(iter(session.prefill())),
        lambda: cache.batch([session]),
        lambda: step.put(0, rows(20), rows(20)),
    )
    for use in uses:
        refused(cache, kv.errors.ClosedError, "closed|dropped", use)
    assert repr(session) == "<kvtrie.Session, closed>"
    cache.close()
    for use in (lambda: cache.begin(TOKENS), lambda: cache.plan(TOKENS), lambda: cache.nodes(), lambda: cache.pin([1])):
        with pytest.raises(kv.errors.ClosedError):
            use()
    assert "closed" in repr(cache)


def test_a_session_of_another_cache(shared: Any) -> None:
    other = make_cache(64, device="host")
    with other.begin(TOKENS) as session, shared.begin(TOKENS) as own:
        refused(shared, VALUE, r"sessions\[1\] belongs to another", lambda: shared.batch([own, session]))
        refused(shared, VALUE, "twice", lambda: shared.batch([own, own]))
        refused(shared, VALUE, "chunk: got 0", lambda: shared.batch([own], chunk=0))
        refused(shared, VALUE, "chunk: got -1", lambda: own.prefill(chunk=-1))
        refused(shared, TYPE, "chunk", lambda: own.prefill(chunk=1.5))
        refused(shared, kv.errors.NotRestorableError, "length: got -1, allowed 0 to 20", lambda: own.rewind(-1))
        refused(shared, TYPE, "length", lambda: own.rewind("0"))
        refused(shared, TYPE, "length", lambda: own.rewind(1.0))
        refused(shared, kv.Error, "pickle", lambda: pickle.dumps(own))


def test_a_full_cache_says_how_much(device: Any) -> None:
    cache = make_cache(32, growth=0)
    model = CodingModel()
    with cache.begin(range(20)) as session:
        compute(session, model)
        with cache.begin(range(50, 70)) as other:
            error = refused(cache, kv.errors.CacheFullError, "needed|got", lambda: other.decode())
            assert (error.needed, error.free, error.freeable, error.held_live) == (20, 12, 0, 20)


SCRIPT_WITHOUT_DEVICE = """
import kvtrie as kv
assert kv.devices() == []
for make in (kv.Device, lambda: kv.tensor([1.0]), lambda: kv.caches.CausalCache(1, 1, 8, 4), lambda:
kv.ops.silu([1.0])):
    try:
        make()
    except kv.errors.DeviceError as error:
        assert "pocl-opencl-icd" in str(error), error
    else:
        raise SystemExit("no error")
cache = kv.PrefixCache(kv.caches.CausalCache(1, 1, 8, 4, device="host"))
with cache.begin([1, 2, 3]) as session:
    step = session.decode()
    step.attend(0, [[[1.0] * 8]] * 3, [[[1.0] * 8]] * 3, [[[1.0] * 8]] * 3)
assert cache.plan([1, 2, 3]).matched == 3
print("good")
"""


def test_a_machine_without_a_device(tmp_path: Any) -> None:
    nowhere = {"OCL_ICD_VENDORS": str(tmp_path), "OPENCL_VENDOR_PATH": str(tmp_path)}
    result = run_python("-c", SCRIPT_WITHOUT_DEVICE, environment=nowhere)
    assert (result.returncode, result.stdout, result.stderr) == (0, "good\n", "")


# ---- numbers and names that would take for ever, or half of which would be used --------------------------------------


@pytest.mark.parametrize(
    "make", [lambda n: kv.caches.CausalCache(n, 1, 2, 64, device="host"), lambda n: kv.media("x", n)]
)
def test_counts_that_no_model_has(make: Callable[[int], Any]) -> None:
    with pytest.raises(VALUE, match=r"got 2147483647, allowed 1 to \d+"):
        make(2**31 - 1)


@pytest.mark.parametrize("name", ["", "half\0other"])
def test_names_of_folders(name: str, tmp_path: Path) -> None:
    """Nothing is made: not the half in front of a NUL either."""
    folder = f"{tmp_path}/{name}" if name else ""
    with pytest.raises(VALUE, match="disk: got"):
        make_cache(64, device="host", host_bytes="64KiB", fingerprint="w", disk=folder, disk_bytes="1MiB")
    cache = make_cache(64, device="host", host_bytes="64KiB", fingerprint="w")
    with pytest.raises(VALUE, match="path: got"):
        cache.save(folder)
    assert list(tmp_path.iterdir()) == []


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"somewhere"


PATH_CALLS: dict[str, Callable[[Any], Any]] = {
    "disk": lambda path: make_cache(64, device="host", host_bytes="64KiB", fingerprint="w", disk=path),
    "open": lambda path: kv.PrefixCache.open(path, kv.caches.CausalCache(1, 1, 2, 64, device="host"), fingerprint="w"),
    "save": lambda path: make_cache(64, device="host", host_bytes="64KiB", fingerprint="w").save(path),
    "load": lambda path: kv.models.load(path),
    "trace": lambda path: kv.replay.read(path),
    "mooncake": lambda path: kv.replay.read_mooncake(path),
    "tokens": lambda path: kv.replay.read_tokens(path),
    "written": lambda path: kv.replay.write_tokens([], path),
}


@pytest.mark.parametrize("call", PATH_CALLS.values(), ids=PATH_CALLS)
@pytest.mark.parametrize("path", [3, object(), b"somewhere", BytesPath()], ids=["int", "object", "bytes", "bytes path"])
def test_what_is_no_path(call: Callable[[Any], Any], path: Any) -> None:
    """An int above all: the system would take it for a file that is open."""
    with pytest.raises(TYPE, match=r"(disk|path|trace): got \w+, allowed a str or a path"):
        call(path)


@pytest.mark.parametrize("call", PATH_CALLS.values(), ids=PATH_CALLS)
def test_a_path_with_a_nul(call: Callable[[Any], Any]) -> None:
    with pytest.raises(VALUE, match="got a name with a NUL in it, allowed one without"):
        call("half\0other")
