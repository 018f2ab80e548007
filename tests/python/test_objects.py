"""Every object under what Python does to any object (object_table.py makes them, object_worker.py does it).

A right outcome is an answer, a TypeError or an error of the library, and the object goes on as it was: never an abort,
a hang or a wrong answer.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import pickle

import pytest

import kvtrie as kv
from kvtrie._live import Live
from kvtrie._whole import Whole
from object_table import GROUPS, LEFT_OUT, LIVE, public_classes
from processes import run_python
from random_models import random_model

WORKER = __file__.replace("test_objects.py", "object_worker.py")
SWEEPS = ("copies", "makings", "classes", "protocols", "ends", "forks")
# How many things each is to try at the least, so that none is found right because nothing was done.
LEAST = {"copies": 100, "makings": 190, "classes": 600, "protocols": 250, "ends": 130, "forks": 60, "interpreters": 80}
QUICK = {("makings", "core"), ("copies", "core"), ("forks", "core")}
TABLE = {entry.cls for group in GROUPS.values() for entry in group.values()}
KNOWN_CLASSES = {f"{each.__module__}.{each.__qualname__}" for each in (*TABLE, *LEFT_OUT)}


def swept(sweep: str, group: str, *names: str) -> list[str]:
    done = run_python(WORKER, sweep, group, *names)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert names or said["tried"] >= LEAST[sweep]
    assert set(said["seen"]) <= KNOWN_CLASSES
    return list(said["wrong"])


def test_every_public_class_is_in_the_table() -> None:
    missing = [each.__qualname__ for each in public_classes() if each not in TABLE and each not in LEFT_OUT]
    assert missing == []
    assert all(LEFT_OUT.values())


def test_what_lives_is_derived_from_what_refuses_copies() -> None:
    """So that a new class need not think of pickle, copies, forks and the rest."""
    for entry in GROUPS["package"].values():
        assert issubclass(entry.cls, Live) == (entry.kind == LIVE), entry.cls


@pytest.mark.parametrize(
    ("sweep", "group"),
    [
        pytest.param(sweep, group, marks=() if (sweep, group) in QUICK else pytest.mark.ci)
        for sweep in SWEEPS
        for group in GROUPS
    ],
)
def test_objects(sweep: str, group: str) -> None:
    assert swept(sweep, group) == []


def test_a_batcher_and_its_requests_in_a_fork() -> None:
    """Whose locks its own thread takes."""
    assert swept("forks", "package", "kvtrie.batcher.Batcher", "kvtrie.request.Request") == []


@pytest.mark.ci
@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="needs CPython's _testcapi")
@pytest.mark.parametrize("group", ["core", "device"])
def test_objects_in_another_interpreter(group: str) -> None:
    assert swept("interpreters", group) == []


def test_no_other_module_shares_the_base_of_the_core() -> None:
    """What was changed in it is nobody else's (python/bindings/base_class.h)."""
    heirs = kv.trie.PrefixTrie.__base__.__subclasses__()
    assert {each.__module__.partition(".")[0] for each in heirs} == {"kvtrie"}


@pytest.mark.ci
def test_a_model_is_whole_and_its_copy_shares_its_weights() -> None:
    model = random_model("dense")
    for function in (copy.deepcopy, *(lambda x, n=n: pickle.dumps(x, n) for n in range(6))):
        with pytest.raises(TypeError):
            function(model)
    with pytest.raises(kv.errors.ArgumentTypeError, match="did not run"):
        type(model).__new__(type(model)).embed([1])
    with pytest.raises(kv.errors.ArgumentTypeError, match="ran already"):
        model.__init__(model.config, {})
    answers = []
    for each in (model, copy.copy(model)):
        with kv.PrefixCache(each.caches(32), host_bytes=0) as cache, cache.begin([1, 2, 3]) as session:
            answers.append(list(kv.generate(each, session, max_tokens=4)))
    assert answers[0] == answers[1]


def test_an_heir_of_callers_is_made_once_as_well() -> None:
    class Mine(kv.Sampler):
        def __init__(self, seed: int) -> None:
            super().__init__(kv.Sampling(seed=seed))
            self.mine = seed

    mine = Mine(3)
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"__init__\] self: got an object whose __init__ ran already"):
        mine.__init__(4)  # type: ignore[misc]
    assert (mine.mine, mine.sampling.seed) == (3, 3)
    assert isinstance(mine, Whole)


def test_an_init_that_failed_may_run_again() -> None:
    sampler = kv.Sampler.__new__(kv.Sampler)
    with pytest.raises(kv.errors.ArgumentTypeError, match="sampling"):
        sampler.__init__(3)  # type: ignore[misc, arg-type]
    assert not hasattr(sampler, "sampling")
    with pytest.raises(kv.errors.ArgumentTypeError, match="did not run, or failed"):
        sampler.sampling  # noqa: B018
    sampler.__init__(kv.Sampling())  # type: ignore[misc]
    assert sampler.sampling == kv.Sampling()


def test_an_error_in_a_property_is_not_taken_for_a_missing_attribute() -> None:
    class Wrong(kv.Batcher):
        @property
        def closed(self) -> bool:
            raise AttributeError("something else")

    made = Wrong.__new__(Wrong)
    with pytest.raises(AttributeError, match="something else"):
        made.closed  # noqa: B018


def test_an_init_inside_of_itself_is_refused() -> None:
    """Conversions of arguments run code of callers; pybind11 would keep one of the two contents."""
    said: list[str] = []
    made = kv.caches.CausalCache.__new__(kv.caches.CausalCache)

    class Again:
        def __index__(self) -> int:
            with pytest.raises(kv.errors.ArgumentTypeError) as error:
                made.__init__([0], 1, 4, 8, dtype="float32", device="host")  # type: ignore[misc]
            said.append(str(error.value))
            return 2

    made.__init__([0], Again(), 4, 8, dtype="float32", device="host")  # type: ignore[misc, arg-type]
    assert said and all("is under way" in each for each in said)
    assert (made.kv_heads, made.check()) == (2, [])


HELD = """
import os, threading
from kvtrie._locks import make_lock

lock, held, over = make_lock(), threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        over.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    with lock:
        os._exit(0)
over.set()
thread.join()
with lock:
    print(os.waitpid(child, 0)[1])
"""


def test_a_lock_that_a_thread_held_at_a_fork_is_free_in_the_child() -> None:
    done = run_python("-W", "ignore::DeprecationWarning", "-c", HELD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


AFTER = """
import os
import kvtrie as kv
from fakes import make_cache

caches = kv.caches.CausalCache([0], 1, 4, 8, dtype="float32", device="host")
{before}
child = os.fork()
if child == 0:
    cache = make_cache(8, device="host")
    cache.begin([1, 2]).close()
    said = []
    for call in (lambda: kv.PrefixCache([caches]), lambda: kv.caches.HybridCache(caches), {asked}):
        try:
            call()
            said.append("done")
        except kv.errors.NotSupportedError as error:
            said.append("forked" if "forked" in str(error) else str(error))
    print(said, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], caches.check())
"""


@pytest.mark.parametrize("before", [pytest.param("pass", marks=pytest.mark.ci), "kv.devices()"])
def test_what_a_child_makes_of_its_own_and_of_its_parent(before: str) -> None:
    """Drivers start threads as soon as they are asked for devices: a child that used one waited for them for ever."""
    asked = "kv.devices, lambda: kv.tensor([1.0])"
    done = run_python("-W", "ignore::DeprecationWarning", "-c", AFTER.format(before=before, asked=asked))
    assert (done.returncode, done.stderr) == (0, "")
    last = "done" if before == "pass" else "forked"
    assert done.stdout == f"{['forked', 'forked', last, last]}\n0 []\n"
