"""Calls every public function with arguments that nobody should give: `hostile_worker.py SEED CALLS FOLDER [FIRST]`.

Each call spoils one or two arguments of a call that works. It may succeed, raise an error of kvtrie, or let pass what
the argument itself raised. Whatever else it does is a fault, which is printed (with -v: and its traceback). FOLDER/now
has the number and the words of the call that is under way, for whoever finds this process dead; FIRST leaves out the
calls before it, which are drawn all the same.
"""

from __future__ import annotations

import ast
import inspect
import os
import random
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kvtrie as kv
import kvtrie.viz
from hostile_values import HOSTILE, Hostile, HostileExit
from kvtrie import _core, _options

PACKAGE = Path(kv.__file__).parent
TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny"
ROWS = np.ones((3, 2, 4), np.float32)
# Left out: what returns a context of Python's own, writes what is given, or is the value itself.
SKIPPED = {
    "__exit__",
    "__enter__",
    "__iter__",
    "__init__",
    "__eq__",
    "__hash__",
    "__array__",
    "_open_for_trial",
    "_open_with_times",
    "_take_launch_times",
    "_save_programs",
    "_inspect_folder",
    "_log_from",
    "_from_dlpack",
}
CALLED = ("progress", "decode", "launch", "logits_processors", "model")


class Call(NamedTuple):
    where: str
    target: Callable[[], Any]
    required: tuple[str, ...]
    optional: tuple[str, ...]


# ---- what works ------------------------------------------------------------------------------------------------------


def causal() -> Any:
    cache = kv.caches.CausalCache(2, 2, 4, 16, dtype="float32", device="host")
    cache.start_forward([0, 1, 2], [0, 0, 0])
    return cache


def recurrent() -> Any:
    cache = kv.caches.RecurrentCache(2, 3, 4, 2, 2, 3, 8, device="host")
    cache.start_forward([0, 1, 2], [0, 0, 0])
    return cache


def encoder() -> Any:
    cache = kv.caches.EncoderCache(2, 2, 4, 16, dtype="float32", device="host")
    cache.start_forward([0], [0], items=[(0, 0, 3)])
    return cache


def hybrid() -> Any:
    cache = kv.caches.HybridCache([kv.caches.CausalCache(2, 2, 4, 16, dtype="float32", device="host")])
    cache.start_forward([0, 1, 2], [0, 0, 0])
    return cache


def prefix_cache() -> Any:
    return kv.PrefixCache(kv.caches.CausalCache(2, 2, 4, 64, dtype="float32", device="host"), host_bytes="64KiB")


class Numbers:
    """A model of numbers: logits for the tokens 0 to 9."""

    def __init__(self) -> None:
        self.prefix_cache = prefix_cache()

    def __call__(self, step: Any) -> Any:
        rows = np.ones((len(step.tokens), 2, 4), np.float32)
        for layer in range(2):
            step.put(layer, rows, rows)
        return np.eye(10, dtype=np.float32)[np.asarray(step.last_rows) % 10]


def tree() -> Any:
    cache = prefix_cache()
    for tokens in ([1, 2, 3], [1, 2, 4, 5]):
        with cache.begin(tokens) as session:
            for step in session.prefill():
                Numbers()(step)
    return cache


class Tiny:
    model: Any = None

    @classmethod
    def get(cls) -> Any:
        if cls.model is None:
            cls.model = kv.models.load(TINY)
        return cls.model


def tokenizer() -> Any:
    return Tiny.get().tokenizer


RECEIVERS: dict[str, Callable[[], Any]] = {
    "CausalCache": causal,
    "RecurrentCache": recurrent,
    "EncoderCache": encoder,
    "HybridCache": hybrid,
    "PrefixCache": tree,
    "Session": lambda: tree().begin([1, 2, 9, 8, 7]),
    "Step": lambda: tree().begin([1, 2, 9, 8, 7]).decode(),
    "Tensor": lambda: kv.tensor(ROWS, device="host"),
    "PrefixTrie": kv.trie.PrefixTrie,
    "StepGraphs": kv.ops.StepGraphs,
    "Device": kv.Device,
    "PackedSet": lambda: kv.ops.PackedSet(kv.ops.pack(np.ones((8, 32), np.float32)), 2),
    "Tokenizer": tokenizer,
    "Detokenizer": lambda: tokenizer().stream(),
    "Model": Tiny.get,
    "Sampler": lambda: kv.Sampler(kv.Sampling(temperature=0.5), 10),
    "Batch": lambda: kv.Batch(Numbers(), prefix_cache()),
}
VALID: dict[str, Callable[[], Any]] = {
    "tokens": lambda: [1, 2, 3],
    "layer": lambda: 0,
    "q": lambda: ROWS,
    "k": lambda: ROWS,
    "v": lambda: ROWS,
    "x": lambda: ROWS,
    "a": lambda: ROWS,
    "b": lambda: ROWS,
    "gate": lambda: ROWS,
    "up": lambda: ROWS,
    "logits": lambda: ROWS[:, 0],
    "eps": lambda: 1e-5,
    "weight": lambda: np.ones(4, np.float32),
    "bias": lambda: None,
    "positions": lambda: [3, 4],
    "sequences": lambda: [0, 0],
    "seq": lambda: 0,
    "src": lambda: 0,
    "dst": lambda: 1,
    "length": lambda: 2,
    "begin": lambda: 0,
    "position": lambda: 1,
    "offsets": lambda: [1],
    "at": lambda: 1,
    "start": lambda: 0,
    "target": lambda: 1,
    "snapshot": lambda: None,
    "layers": lambda: 2,
    "kv_heads": lambda: 2,
    "head_dim": lambda: 4,
    "capacity": lambda: 16,
    "caches": lambda: kv.caches.CausalCache(2, 2, 4, 16, device="host"),
    "array": lambda: ROWS,
    "dtype": lambda: "float32",
    "index": lambda: slice(0, 1),
    "axis": lambda: 0,
    "sizes": lambda: [1, 2],
    "tensors": lambda: [ROWS, ROWS],
    "temperature": lambda: 0.5,
    "top_k": lambda: 2,
    "top_p": lambda: 0.9,
    "seed": lambda: 1,
    "table": lambda: np.ones((9, 4), np.float32),
    "ids": lambda: [1, 2],
    "w": lambda: np.ones((6, 4), np.float32),
    "digest": lambda: b"x",
    "count": lambda: 2,
    "keep": lambda: 1,
    "chunk": lambda: 4,
    "sessions": lambda: [tree().begin([9])],
    "except_": lambda: [0],
    "nbytes": lambda: 64,
    "path": lambda: str(TINY),
    "text": lambda: "Once",
    "token": lambda: "a",
    "messages": lambda: [{"role": "user", "content": "Hi"}],
    "model": Numbers,
    "prompt": lambda: [1, 2, 3],
    "prompts": lambda: [[1, 2], [3]],
    "cache": tree,
    "sampling": lambda: kv.Sampling(temperature=0.5),
    "generated": lambda: 0,
    "session": lambda: tree().begin([1, 2, 9]),
    "max_tokens": lambda: 3,
    "namespace": lambda: "default",
    "node": lambda: None,
    "like": lambda: kv.ops.pack(np.ones((8, 32), np.float32)),
    "step": lambda: tree().begin([1, 9]).decode(),
    "launch": lambda: lambda: None,
    "url": lambda: "redis://localhost:1",
    "store": lambda: "redis://localhost:1",
    "kind": lambda: next(iter(kv.replay.KINDS)),
    "trace": list,
    "requests": list,
    "records": list,
    "wanted": lambda: kv.replay.workload(next(iter(kv.replay.KINDS)), sessions=1, turns=1),
    "decode": lambda: str,
    "source": lambda: "{{ messages }}",
    "blocks": lambda: np.zeros(34, np.uint8),
    "weights": dict,
    "config": dict,
    "device": lambda: "host",
    "window": lambda: 4,
    "memory": lambda: 8,
    "disk_bytes": lambda: 4096,
    "host_bytes": lambda: 4096,
    "stop": lambda: "end",
}


# ---- what there is ---------------------------------------------------------------------------------------------------


def of_stub(arguments: ast.arguments) -> tuple[tuple[str, ...], tuple[str, ...]]:
    plain = [each.arg for each in [*arguments.posonlyargs, *arguments.args] if each.arg not in ("self", "cls")]
    split = len(plain) - len(arguments.defaults)
    named = {each.arg: default for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults)}
    required = (*plain[:split], *(name for name, default in named.items() if default is None))
    return required, (*plain[split:], *(name for name, default in named.items() if default is not None))


def calls_of_stub(body: list[Any], scope: Any, made: str = "") -> Iterator[Call]:
    """Functions, constructors and methods of the C++ core, whose types are in _core.pyi."""
    for item in body:
        if isinstance(item, ast.ClassDef):
            if hasattr(scope, item.name) and item.name not in ("_SharedTier", "Replay"):
                inner = item.name if inspect.isclass(getattr(scope, item.name)) else ""
                yield from calls_of_stub(item.body, getattr(scope, item.name), inner)
        elif isinstance(item, ast.FunctionDef) and not item.decorator_list and item.args.vararg is None:
            required, optional = of_stub(item.args)
            if item.name == "__init__" and made != "PrefixCache":
                yield Call(made, lambda scope=scope: scope, required, optional)
            elif item.name not in SKIPPED and (not made or made in RECEIVERS):
                yield Call(f"{made}.{item.name}".lstrip("."), _getter(scope, made, item.name), required, optional)
        elif isinstance(item, ast.FunctionDef) and not made and item.args.vararg is None:
            required, optional = of_stub(item.args)  # a static method of a namespace
            yield Call(f"ops.{item.name}", lambda scope=scope, name=item.name: getattr(scope, name), required, optional)


def _getter(scope: Any, made: str, name: str) -> Callable[[], Any]:
    return (lambda: getattr(RECEIVERS[made](), name)) if made else (lambda: getattr(scope, name))


def of_python(where: str, function: Any, target: Callable[[], Any]) -> Call:
    required, optional = [], []
    for name, each in inspect.signature(function).parameters.items():
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and name not in ("self", "cls"):
            (required if each.default is each.empty else optional).append(name)
    return Call(where, target, tuple(required), tuple(optional))


def calls_of_python() -> Iterator[Call]:
    import kvtrie.models.chat_template as chat_template

    functions = {
        "PrefixCache": kv.PrefixCache,
        "PrefixCache.open": kv.PrefixCache.open,
        "generate": kv.generate,
        "generate_batch": kv.generate_batch,
        "Sampling": kv.Sampling,
        "Sampler": kv.Sampler,
        "Batch": kv.Batch,
        "simulate": kv.replay.simulate,
        "stores.RedisStore": kv.stores.RedisStore,
        "stores.open_store": kv.stores.open_store,
        "models.load": kv.models.load,
        "models.from_weights": kv.models.from_weights,
        "ChatTemplate": chat_template.ChatTemplate,
        **{f"viz.{name}": getattr(kv.viz, name) for name in kv.viz.__all__},
        **{
            f"simulate.{name}": getattr(kv.replay, name)
            for name in kv.replay.__all__
            if callable(getattr(kv.replay, name)) and name not in ("Report", "Row", "Request", "Trace", "simulate")
        },
    }
    for name, function in functions.items():
        yield of_python(name, function, lambda function=function: function)
    methods = {
        "PrefixCache": ("save", "nodes", "tree", "to_dot", "to_svg"),
        "Tokenizer": ("encode", "decode", "token_id", "special_id", "stream", "template", "apply_chat_template"),
        "Detokenizer": ("feed",),
        "Model": ("__call__", "caches", "warm_up"),
        "Sampler": ("__call__",),
        "Batch": ("add",),
    }
    for made, names in methods.items():
        for name in names:
            yield of_python(f"{made}.{name}", getattr(_class(made), name), _getter(None, made, name))
    reply = (*_options.TextOptions.__annotations__,)
    chosen = (*_options.SamplingOptions.__annotations__,)
    yield Call("Model.chat", lambda: Tiny.get().chat, ("messages",), ("tools", "template", *reply, *chosen))
    yield Call("Model.complete", lambda: Tiny.get().complete, ("text",), (*reply, *chosen))
    yield Call(
        "generate to its end",
        lambda: lambda **given: list(kv.generate(**given)),
        ("model", "session"),
        ("max_tokens", *chosen),
    )


def _class(name: str) -> Any:
    return getattr(kv.models, name, None) or getattr(kv, name)


def all_calls() -> list[Call]:
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    found = [*calls_of_stub(stub.body, _core), *calls_of_python()]
    return [call for call in found if call.required or call.optional]


# ---- the calls -------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    number: int
    text: str
    trace: str


def given(call: Call, chance: random.Random) -> dict[str, str]:
    """Which arguments are spoiled, and by what."""
    names = [*call.required, *call.optional]
    spoiled = chance.sample(names, min(len(names), 1 if chance.random() < 0.8 else 2))
    return {name: chance.choice(list(HOSTILE)) for name in spoiled}


def is_meant(call: Call, spoiled: dict[str, str], error: BaseException) -> bool:
    """Python's protocols ask for it, or it is of a class that was given as a callable."""
    if isinstance(error, BufferError):
        return call.where == "Tensor.__dlpack__"
    if isinstance(error, IndexError):  # by which Python ends a loop
        return call.where == "PackedSet.__getitem__"
    called = any(spoiled.get(name) in ("class", "scalar type") for name in CALLED)
    return called and isinstance(error, (TypeError, ValueError))


def attempt(call: Call, spoiled: dict[str, str]) -> tuple[str, str]:
    """("", "") where all is well; else what went wrong, and where."""
    try:
        target = call.target()
        arguments = {name: VALID.get(name, lambda: None)() for name in call.required}
        arguments.update({name: HOSTILE[value]() for name, value in spoiled.items()})
    except Exception:
        return "the preparation", traceback.format_exc()
    try:
        result = target(**arguments)
        if call.where in ("Model.chat", "Model.complete"):
            next(result, None)
            result.close()
    except (kv.Error, Hostile, HostileExit, StopIteration):
        return "", ""
    except BaseException as error:
        if is_meant(call, spoiled, error):
            return "", ""
        return f"{type(error).__name__}: {ascii(str(error))[:300]}", traceback.format_exc()
    return "", ""


def main(seed: int, count: int, folder: Path, first: int = 0) -> None:
    warnings.simplefilter("ignore")
    limit = 6 << 30  # bytes of addresses: what asks for more by mistake is told so
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    chance, calls = random.Random(seed), all_calls()
    folder = folder.resolve()
    os.chdir(folder)  # a hostile text may be the name of a file that a call writes
    VALID["disk"] = lambda: str(folder / "tier")
    faults: dict[str, Fault] = {}
    with (folder / "now").open("w") as now:
        for number in range(count):
            call = chance.choice(calls)
            spoiled = given(call, chance)
            if number < first:
                continue
            text = f"{call.where}({', '.join(f'{name}={value}' for name, value in spoiled.items())})"
            now.seek(0)
            now.write(f"{number} {text}" + " " * 200)
            now.flush()
            begin = time.monotonic()
            wrong, trace = attempt(call, spoiled)
            if "-v" in sys.argv and time.monotonic() - begin > 3:
                print(f"SLOW {time.monotonic() - begin:.1f} {number} {text}", flush=True)
            if wrong:
                faults.setdefault(f"{call.where} {wrong[:40]}", Fault(number, f"{text}: {wrong}", trace))
    for fault in faults.values():
        print(f"call {fault.number} of seed {seed}: {fault.text}\n{fault.trace if '-v' in sys.argv else ''}")
    print(f"{count} calls of {len(calls)} functions, {len(faults)} faults")


if __name__ == "__main__":
    arguments = [each for each in sys.argv[1:] if each != "-v"]
    main(int(arguments[0]), int(arguments[1]), Path(arguments[2]), *map(int, arguments[3:]))
