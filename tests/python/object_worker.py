"""What test_objects.py has done to objects: `object_worker.py SWEEP GROUP [CLASS ...]`; SWEEP is a function here.

Prints one line of JSON: how many things were tried, what was wrong, and of which classes answers were. A right outcome
is an answer, a TypeError or an error of the library, and the object is as it was. What ends or holds up this process is
found by who started it; its last line on stderr says what was tried.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import copy
import dataclasses
import gc
import inspect
import itertools
import json
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

os.environ["KVTRIE_HELPER"] = "0"

import numpy as np

import kvtrie as kv
from object_table import GROUPS, LIVE, VALUE, Entry, World

REFUSALS = (TypeError, kv.Error)
ENDS = (StopIteration, StopAsyncIteration)
FOLDER = tempfile.mkdtemp(prefix="objects-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
ROWS = np.ones((2, 2, 4), np.float32)
GUESSES: dict[str, Any] = {
    "tokens": [1, 2],
    "prompt": [1, 2],
    "positions": [0, 1],
    "sequences": [0, 0],
    "path": FOLDER,
    "namespace": "a",
    "seq": 0,
    "layer": 0,
    "src": 0,
    "k": ROWS,
    "v": ROWS,
    "q": ROWS,
    "snapshot": None,
    "key": "k",
    "value": b"v",
    "text": "a",
    "messages": [{"role": "user", "content": "a"}],
    "dtype": "float32",
    "nbytes": 0,
    "except_": [0],
    "sessions": [],
    "given": {},
}
OF_OTHERS = ("ids_of", "take", "model")  # what takes what only another call gives


class Sweep:
    """Counts, and keeps what was wrong."""

    def __init__(self) -> None:
        self.tried = 0
        self.wrong: list[str] = []
        self.seen: set[str] = set()

    def attempt(self, what: str, call: Callable[[], object], allowed: tuple[type[BaseException], ...] = ()) -> Any:
        """What it gave; the error if it was refused, as it may be."""
        self.tried += 1
        print(what, file=sys.stderr, flush=True)
        try:
            answer = call()
            self.see(answer)
            return answer
        except (*REFUSALS, *ENDS, *allowed) as error:
            return error
        except BaseException as error:
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")
            return error

    def see(self, answer: object) -> None:
        for each in (answer, *(answer[:3] if isinstance(answer, (list, tuple)) else ())):
            kind = type(each)
            if kind.__module__.startswith("kvtrie") and not isinstance(each, BaseException):
                self.seen.add(f"{kind.__module__}.{kind.__qualname__}")

    def report(self) -> str:
        return json.dumps({"tried": self.tried, "wrong": self.wrong, "seen": sorted(self.seen)})

    def require(self, what: str, good: object) -> None:
        if not good:
            self.wrong.append(what)


# ---- calls -----------------------------------------------------------------------------------------------------------


def required(function: Any) -> list[str]:
    """Names of the arguments without a default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        line = " ".join((function.__doc__ or "f()").split("\n")[0].split()).replace("kvtrie._core.", "")
        a = ast.parse(f"def {line}: ...").body[0].args  # type: ignore[attr-defined]
        positional = [*a.posonlyargs, *a.args]
        return [each.arg for each in positional[: len(positional) - len(a.defaults)] if each.arg != "self"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind in kinds]


def called(function: Any) -> object:
    """The answer to guessed arguments; of a coroutine what it gives."""
    given = function(*[GUESSES.get(name, 1) for name in required(function)])
    if inspect.isawaitable(given) and not isinstance(given, (kv.Request, kv.Generation)):
        return asyncio.run(waited(given))
    return list(itertools.islice(given, 3)) if inspect.isgenerator(given) else given


async def waited(one: Awaitable[object]) -> object:
    return await one


def names_of(cls: type) -> Iterator[str]:
    builtin = {*dir(str), *dir(tuple)} if issubclass(cls, (str, tuple)) else ()
    skipped = ("__class__", "__init__", "__new__", "__init_subclass__", "__subclasshook__", "__getattribute__")
    for name in dir(cls):
        if (
            name not in skipped
            and name not in builtin
            and not name.startswith(("__getattr", "__setattr", "__delattr", "__class", "__reduce"))
        ):
            yield name


def used(sweep: Sweep, what: str, made: Any) -> dict[str, object]:
    """Every attribute read, and every method called."""
    outcomes: dict[str, object] = {}
    cls = type(made)
    for name in names_of(cls):
        if (name.startswith("_") and not name.startswith("__")) or name in OF_OTHERS:
            continue

        def use(name: str = name) -> object:
            value = getattr(made, name)
            return called(value) if callable(value) else value

        if name in (
            "__enter__",
            "__iter__",
            "__aenter__",
            "__aiter__",
            "__await__",
            "__next__",
            "__len__",
            "__repr__",
        ) or (not name.startswith("__")):
            outcomes[name] = sweep.attempt(f"{what}.{name}", use)
    return outcomes


# ---- sweeps ----------------------------------------------------------------------------------------------------------

COPIES: dict[str, Callable[[Any], object]] = {
    **{f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def copies(sweep: Sweep, name: str, entry: Entry, world: World) -> None:
    """pickle, copy and what they ask an object for."""
    made = entry.make(world)
    before = entry.well(made)
    for how, function in COPIES.items():
        got = sweep.attempt(f"{name} {how}", lambda f=function: f(made))
        if isinstance(got, BaseException):
            # protocols that know no slots
            sweep.require(f"{name} {how}: {got!r}", entry.kind != VALUE or how in ("pickle 0", "pickle 1"))
        elif how == "copy" and hasattr(entry.cls, "__copy__"):
            got.close()
        else:
            sweep.require(f"{name} {how}: made another one", entry.kind != LIVE)
            sweep.require(f"{name} {how}: another value", entry.well(got) == before)
    asks = ["__reduce__", *(["__getstate__"] if hasattr(made, "__getstate__") else [])]
    for ask in asks:
        sweep.attempt(f"{name} {ask}", lambda ask=ask: getattr(made, ask)())
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        got = sweep.attempt(f"{name} __reduce_ex__({protocol})", lambda p=protocol: made.__reduce_ex__(p))
        sweep.require(f"{name} reduced", isinstance(got, REFUSALS) or entry.kind != LIVE)
    sweep.require(f"{name} is not as before", entry.well(made) == before)


def makings(sweep: Sweep, name: str, entry: Entry, world: World) -> None:
    """Base classes, ``__new__`` by itself, heirs, ``__init__`` again, another class."""
    made = entry.make(world)
    cls, before = type(made), entry.well(made)
    base = cls.__base__
    sweep.attempt(f"{name} base()", base)
    for how, make in {
        "base.__new__": lambda: base.__new__(cls),
        "object.__new__": lambda: object.__new__(cls),
        "__new__": lambda: cls.__new__(cls),
    }.items():
        raw = sweep.attempt(f"{name} {how}", make)
        if type(raw) is cls and not issubclass(cls, (str, tuple)):  # of which Python makes empty ones
            outcomes = used(sweep, f"{name} {how}", raw)
            if not dataclasses.is_dataclass(cls):  # whose defaults are the class's
                said = [
                    each for each in outcomes.values() if isinstance(each, TypeError) and "did not run" in str(each)
                ]
                sweep.require(f"{name} {how}: nothing says that it is not whole", said)
            del raw
            gc.collect()
    heirs(sweep, name, cls)
    if "__init__" in dir(cls) and entry.kind != VALUE:
        for arguments in ((), entry.again):
            got = sweep.attempt(f"{name} __init__ again", lambda a=arguments: made.__init__(*a))
            sweep.require(f"{name} made twice", isinstance(got, REFUSALS) or entry.kind != LIVE)
    if entry.kind != VALUE:
        sweep.require(f"{name} is not as before", entry.well(made) == before)


def heirs(sweep: Sweep, name: str, cls: type) -> None:
    """Classes of callers that forget to make what they are derived from."""

    def plain() -> object:
        class Heir(cls):  # type: ignore[misc, valid-type]
            pass

        return used(sweep, f"{name} heir", Heir())

    def forgetful() -> object:
        class Heir(cls):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                pass

        return used(sweep, f"{name} forgetful heir", Heir())

    def of_the_base() -> object:
        return type("Heir", (cls.__base__,), {})()

    for make in (plain, forgetful, of_the_base):
        sweep.attempt(f"{name} {make.__name__}", make)


def classes(sweep: Sweep, name: str, entry: Entry, world: World) -> None:
    """An object with the class of each of the others, and two classes with one heir."""
    made = entry.make(world)
    before = entry.well(made)
    change = vars(object)["__class__"].__set__
    for other in GROUPS["core"].values():
        if other.cls is entry.cls:
            continue
        for how, call in {
            "=": lambda o=other: setattr(made, "__class__", o.cls),
            "by object": lambda o=other: change(made, o.cls),
            **(two_classes(entry.cls, other.cls) if group_of(entry) != "package" else {}),
            "slots": lambda o=other: change(made, type("Slots", (o.cls,), {"__slots__": ()})),
        }.items():
            got = sweep.attempt(f"{name} {how} {other.cls.__name__}", call, (dataclasses.FrozenInstanceError,))
            sweep.require(f"{name} {how} {other.cls.__name__}", isinstance(got, (TypeError, AttributeError)))
    sweep.require(f"{name} is not as before", entry.well(made) == before)


def group_of(entry: Entry) -> str:
    return next(name for name, group in GROUPS.items() if entry in group.values())


def two_classes(one: type, other: type) -> dict[str, Callable[[], object]]:
    """Of the core: what is in an object of one is never taken for the other's."""
    return {
        "heir of both": lambda: type("Both", (one, other), {}),
        "other bases": lambda: setattr(type("Heir", (one,), {}), "__bases__", (other,)),
    }


def protocols(sweep: Sweep, name: str, entry: Entry, world: World) -> None:
    """What every object is asked: texts, sizes, comparisons, weak references, attributes that go."""
    world = world.fresh()
    made = entry.make(world)
    before = entry.well(made)
    asked: dict[str, Callable[[], object]] = {
        "hash": lambda: hash(made),
        "eq": lambda: (made == made, made == 3, made != None),  # noqa: E711
        "order": lambda: made < made,
        "bool": lambda: bool(made),
        "len": lambda: len(made),
        "dir": lambda: dir(made),
        "repr": lambda: (repr(made), ascii(made)),
        "format": lambda: format(made),
        "format d": lambda: format(made, "d"),
        "sizeof": lambda: sys.getsizeof(made),
        "weakref": lambda: weakref.ref(made)() is made,
        "in": lambda: hasattr(made, "__next__") or 3 in made,  # which would read what an iterator has
        "index": lambda: made[0],
        "slice": lambda: made[:1],
        "del": lambda: getattr(made, "__del__", int)(),
        "setattr": lambda: setattr(made, "an_attribute", 1),
    }
    for what, ask in asked.items():
        sweep.attempt(f"{name} {what}", ask, (AttributeError, ValueError, IndexError))
    if entry.kind == LIVE and not name.startswith(("kvtrie.generation", "kvtrie.request")):
        sweep.attempt(f"{name} iter", lambda: iter(made))
    else:
        sweep.attempt(f"{name} iter", lambda: list(itertools.islice(iter(entry.make(world)), 100)))
    sweep.require(f"{name} is not as before", entry.well(made) == before)
    for attribute in names_of(type(made)):
        sweep.attempt(f"{name} del .{attribute}", lambda a=attribute: delattr(made, a), (AttributeError,))
    if not name.startswith("kvtrie._core") or hasattr(made, "__dict__"):
        used(sweep, f"{name} without attributes", made)
    else:
        sweep.require(f"{name} is not as before", entry.well(made) == before)


def ends(sweep: Sweep, name: str, entry: Entry, world: World) -> None:
    """Everything after the end, which comes twice."""
    world = world.fresh()
    made = entry.make(world)
    if hasattr(made, "__enter__"):
        for _ in range(2):
            sweep.attempt(f"{name} enter", made.__enter__)
        for _ in range(2):
            sweep.attempt(f"{name} exit", lambda: made.__exit__(None, None, None))
    for how in ("close", "cancel"):
        if hasattr(made, how):
            for _ in range(2):
                got = sweep.attempt(f"{name} {how}", getattr(made, how))
                sweep.require(f"{name} {how}: {got!r}", got is None)
    used(sweep, f"{name} ended", made)
    if isinstance(made, kv.Session):
        world.small[0].close()
    else:
        owner = world.__dict__.get("batcher") or (world.__dict__.get("small") or [None])[0]
        if owner is not None:
            owner.close()
    used(sweep, f"{name} without its owner", made)


def forks(sweep: Sweep, name: str, entry: Entry, world: World) -> None:
    """Everything in a child, which then ends it."""
    made = entry.make(world)
    before = entry.well(made)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sweep.wrong.clear()
        outcomes = used(sweep, f"{name} forked", made)
        gone = ("__enter__", "__iter__", "__aenter__", "__aiter__", "__repr__", "close", "cancel", "aclose", "closed")
        for asked, outcome in outcomes.items():
            right = isinstance(outcome, REFUSALS) or entry.kind != LIVE or asked in gone
            sweep.require(f"{name} forked .{asked} answers {outcome!r}"[:200], right)
        world.__dict__.clear()
        del made, outcomes
        gc.collect()
        os.write(writing, json.dumps([sweep.tried, sweep.wrong]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    sweep.require(f"{name} forked: ended by {status}", status == 0 and said)
    if said:
        sweep.tried, wrong = json.loads(said)
        sweep.wrong += wrong
    sweep.require(f"{name} is not as before", entry.well(made) == before)


IN_ANOTHER = """
import ctypes, json
for name, address in json.loads({addresses!r}):
    made = ctypes.cast(address, ctypes.py_object).value
    for attribute in dir(type(made)):
        if attribute in ("__class__", "__del__") or hasattr(object, attribute) and attribute != "__repr__":
            continue
        try:
            value = getattr(made, attribute)
            value = value() if callable(value) else value
            said = "answers " + type(value).__name__
            del value
        except BaseException as error:
            said = type(error).__name__ + ": " + str(error)
        with open({said!r}, "a") as file:
            print(json.dumps([name + "." + attribute, said]), file=file)
    del made
"""


HARMLESS = {
    "answers " + name for name in ("str", "int", "list", "tuple", "NoneType", "dict", "PrefixCache")
}  # no call of ours


def interpreters(sweep: Sweep, group: str) -> None:
    """All of a group in a subinterpreter, where objects of this one can only be by mistake."""
    import _testcapi

    world, said = World(), os.path.join(FOLDER, "said")
    objects = {name: entry.make(world) for name, entry in GROUPS[group].items()}
    before = {name: entry.well(objects[name]) for name, entry in GROUPS[group].items()}
    addresses = json.dumps([(name, id(made)) for name, made in objects.items()])
    sweep.require(
        "the interpreter failed", _testcapi.run_in_subinterp(IN_ANOTHER.format(addresses=addresses, said=said)) == 0
    )
    with open(said, encoding="utf-8") as file:
        for what, outcome in map(json.loads, file):
            sweep.tried += 1
            refused = "a subinterpreter" in outcome or outcome.startswith("TypeError")
            sweep.require(f"{what}: {outcome}", refused or outcome in HARMLESS)
    for name, entry in GROUPS[group].items():
        sweep.require(f"{name} is not as before", entry.well(objects[name]) == before[name])


def main() -> None:
    what, group, *chosen = sys.argv[1:]
    if what == "interpreters":
        sweep = Sweep()
        interpreters(sweep, group)
        print(sweep.report())
        return
    sweep, world = Sweep(), World()
    if group == "package":
        world.model  # noqa: B018
    gc.collect()
    gc.freeze()  # so that what is collected later is little
    for name, entry in GROUPS[group].items():
        if not chosen or name in chosen:
            globals()[what](sweep, name, entry, world)
    if "batcher" in world.__dict__:
        world.batcher.close()
    print(sweep.report())


if __name__ == "__main__":
    main()
