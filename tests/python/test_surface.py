"""The public surface: what is there, that the typed stubs say the same, what importing costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvtrie as kv
from kvtrie import _core
from kvtrie._moved import MOVED
from processes import run_python

PACKAGE = Path(kv.__file__).parent
STUB = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
MADE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tests" / "lint" / "stub.py"))

# ---- stubs -----------------------------------------------------------------------------------------------------------


def arguments(function: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """(kind, name, has a default) of each argument in "f(a, b=1, *, c) -> d"; without self."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    missing = len(positional) - len(a.defaults)
    found = [("positional", arg.arg, index >= missing) for index, arg in enumerate(positional) if arg.arg != "self"]
    if a.vararg is not None:
        found.append(("rest", "args", False))
    return found + [("keyword", arg.arg, default is not None) for arg, default in zip(a.kwonlyargs, a.kw_defaults)]


def signed_arguments(function: Any) -> list[tuple[str, str, bool]]:
    """The same from what ``inspect.signature`` says."""
    kinds = inspect.Parameter
    words = {kinds.VAR_POSITIONAL: "rest", kinds.KEYWORD_ONLY: "keyword"}
    found = inspect.signature(function).parameters.values()
    return [
        (words.get(each.kind, "positional"), each.name, each.default is not kinds.empty)
        for each in found
        if each.name != "self" and each.kind != kinds.VAR_KEYWORD
    ]


def functions(owner: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The functions of the core that the stub shows, by their names."""
    for name, value in vars(owner).items():
        value = getattr(value, "__func__", value)  # of a static method
        if isinstance(owner, ModuleType) and name.startswith("__"):
            continue
        if isinstance(value, (type, ModuleType)) and name != "__class__":
            yield from functions(value, f"{path}.{name}")
        elif callable(value) and MADE["is_shown"](name, value):
            yield f"{path}.{name}", value


def test_the_stub_is_what_the_module_says() -> None:
    """tests/lint/stub.py writes it."""
    made = ast.parse(MADE["generated"]())
    assert ast.dump(STUB) == ast.dump(made), "tests/lint/stub.py writes python/kvtrie/_core.pyi anew"


def test_signatures_and_documentation_say_the_same() -> None:
    found = dict(functions(_core, "_core"))
    assert len(found) > 150
    apart = [
        path for path, function in found.items() if signed_arguments(function) != arguments(MADE["signature"](function))
    ]
    assert apart == []


# Where any object is meant: other libraries' handles, stores, comparison, what Python gives to `__exit__`.
ANYTHING = {"context", "queue", "buffer", "dtype", "store", "value", "arg0", "args"}


def test_no_argument_is_left_without_a_type() -> None:
    """An argument that a binding takes as any object has its type from python/bindings/typed.h."""
    arguments = [
        each
        for node in ast.walk(STUB)
        if isinstance(node, ast.FunctionDef)
        for each in (*node.args.args, *node.args.kwonlyargs, *([node.args.vararg] if node.args.vararg else []))
    ]
    bare = {each.arg for each in arguments if each.annotation is not None and ast.unparse(each.annotation) == "object"}
    assert bare == ANYTHING
    results = [node.returns for node in ast.walk(STUB) if isinstance(node, ast.FunctionDef)]
    assert [each for each in results if each is None or ast.unparse(each) in ("object", "dict", "list", "tuple")] == []


class Documented:
    """As pybind11 has its classes."""

    def shown(self) -> None:
        """shown(self: kvtrie._core.A, x: collections.abc.Sequence[kvtrie._core.B] | None = None, *args) -> int

        More."""

    @property
    def count(self) -> None:
        """(arg0: kvtrie._core.A) -> typing.SupportsInt | typing.SupportsIndex"""

    __iter__ = None


def test_what_the_stub_is_made_of() -> None:
    assert list(MADE["class_of"]("A", Documented)) == [
        "class A:",
        "    def shown(self, x: Sequence[B] | None=None, *args: object) -> int: ...",
        "    @property",
        "    def count(self) -> int: ...",
        "    __iter__: ClassVar[None]",
    ]
    Documented.shown.__doc__ = "shown(self: std::vector<int>) -> int"
    with pytest.raises(ValueError, match=r"\[stub\] shown: got 'shown\(self: std"):
        MADE["signature"](Documented.shown)


def test_signatures_of_what_is_native() -> None:
    """With defaults, bound and not, and of classes; the documentation is not shorter for it."""
    shown = "(self, tokens, namespace='default', *, atomic=None)"
    assert str(inspect.signature(kv.PrefixCache.plan)) == shown
    with kv.PrefixCache([]) as cache:
        assert str(inspect.signature(cache.plan)) == shown.replace("self, ", "")
    assert str(inspect.signature(kv.Device)) == "(name=None)"
    assert str(inspect.signature(kv.devices)) == "()"
    assert str(kv.PrefixCache.plan.__doc__).startswith("plan(self: kvtrie._core.PrefixCache, tokens: Integers, ")


# ---- the surface -----------------------------------------------------------------------------------------------------

SURFACE = {
    kv: "PrefixCache Session Step Generation generate generate_batch DraftModel DraftTree PredictionHead "
    "Batch Batcher Request Sampling Sampler score "
    "quality Tensor tensor Device devices media Error errors results models hf ops stores caches trie ray replay viz",
    kv.caches: "CausalCache Snapshot RecurrentCache RecurrentSnapshot EncoderCache EncoderSnapshot HybridCache "
    "HybridSnapshot",
    kv.trie: "PrefixTrie TrieNode Evicted TokenTexts fingerprints",
    kv.ray: "generate score row_seed scale",
    kv.replay: "simulate simulate_fleet",
    kv.errors: "Error ArgumentError ArgumentTypeError BusyError CacheFullError ClosedError DeviceError DownloadError "
    "FormatError InternalError NotRestorableError NotSupportedError StoreError IgnoredWarning",
    kv.Device: "name vendor kind unified_memory global_bytes capabilities memory from_opencl cl_context cl_queue",
    kv.Tensor: "shape dtype nbytes device numpy reshape astype mapped __array__ __dlpack__ "
    "__dlpack_device__ __getitem__ from_opencl cl_mem cl_offset",
    kv.ops: "matmul matmul_gated pack pack_pair embedding rms_norm layer_norm l2_norm rope silu_mul gelu_mul silu "
    "sigmoid softplus relu_squared signed_root clamp ssd add mul softmax concat split attention choose_keys "
    "attend_chosen argmax sample warm_up",
    kv.caches.CausalCache: "start_forward put get attend choose_keys choose_blocks attend_chosen set_causal "
    "copy_prefix remove can_resume length defrag nbytes free_cells snapshot restore split merge prepare_snapshots "
    "take_snapshots",
    kv.caches.Snapshot: "start end nbytes shared_nbytes tier",
    kv.PrefixCache: "begin batch plan restore page_out evict set_limits set_quota remove_quota usage pin unpin stats "
    "check tree nodes longest to_dot to_svg "
    "_repr_html_ close save open flush",
    kv.Session: "reused matched reason tier bytes_moved remaining prefill append decode branch rewind "
    "can_rewind checkpoint shift length tokens room publishes has_states kv kv_all close __enter__ __exit__",
    kv.Step: "tokens positions sequences sessions attend attend_qkv put get choose_keys choose_blocks attend_chosen "
    "conv gated_delta ssd set_causal states put_states boundaries",
    kv.ops.StepGraphs: "compute stats",
    kv.trie.PrefixTrie: "insert match lock unlock touch evict remove __len__ check",
}


PARTS = (kv, kv.caches, kv.errors, kv.models, kv.ops, kv.ray, kv.replay, kv.results, kv.stores, kv.trie, kv.viz)


def test_every_promised_name_is_there() -> None:
    missing = [(owner, name) for owner, names in SURFACE.items() for name in names.split() if not hasattr(owner, name)]
    assert missing == []


def test_all_names_exist() -> None:
    assert sorted(kv.__all__) == dir(kv)
    assert [name for name in kv.__all__ if not hasattr(kv, name)] == []
    assert [name for name in kv.ops.__all__ if not hasattr(kv.ops, name)] == []
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        kv.nothing_of_the_kind  # noqa: B018


def test_a_name_that_moved_says_where_it_is() -> None:
    assert not set(MOVED) & set(kv.__all__)
    for old, new in MOVED.items():
        module, _, name = new.rpartition(".")
        owner = importlib.import_module(f"kvtrie.{module}") if module else kv
        assert hasattr(owner, name), new
        with pytest.raises(AttributeError, match=f"'{old}': it is kvtrie.{new} now"):
            getattr(kv, old)
        if old != "scale":  # whose module stays for the command line of Ray
            with pytest.raises(ImportError, match=f"'{old}': it is kvtrie.{new} now"):
                exec(f"from kvtrie import {old}")
    with pytest.raises(ImportError, match="cannot import name 'nothing_of_the_kind'"):
        exec("from kvtrie import nothing_of_the_kind")


def test_errors_end_in_error_and_are_in_one_module() -> None:
    """Of the whole package, but for what never leaves it."""
    for name in kv.errors.__all__:
        kind = getattr(kv.errors, name)
        assert kind is kv.errors.IgnoredWarning or (issubclass(kind, kv.Error) and name.endswith("Error"))
    for module in PARTS:
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, BaseException):
                assert value is kv.Error or module is kv.errors, name


def undocumented(path: str, owner: Any, names: Iterable[str]) -> Iterator[str]:
    """What may be called or read there and has no docstring, its own or that of a base; fields of values need none."""
    for name in names:
        value = inspect.getattr_static(owner, name, None)
        value = getattr(value, "__func__", value)  # of a static method
        if isinstance(value, type) and value.__module__.startswith("kvtrie"):
            yield from undocumented(f"{path}.{name}", value, [each for each in dir(value) if not each.startswith("_")])
        if (inspect.isroutine(value) or isinstance(value, (type, property))) and not inspect.getdoc(value):
            yield f"{path}.{name}"


def test_what_is_public_has_a_docstring() -> None:
    """Also in kvtrie.hf, which this leaves to tests/lint/typed.py: it needs torch."""
    assert [name for part in PARTS for name in undocumented(part.__name__, part, part.__all__)] == []
    assert list(undocumented("x", type("X", (), {"f": lambda self: 1}), ["f"])) == ["x.f"]


def test_errors_and_values_are_those_of_the_core() -> None:
    assert issubclass(kv.PrefixCache, _core.PrefixCache)
    assert kv.Session is _core.Session
    assert kv.ops.add is _core.ops.add
    assert kv.__version__ == _core.__version__


# ---- importing -------------------------------------------------------------------------------------------------------

IMPORT = """
import logging, sys
import kvtrie
heavy = {"tokenizers", "safetensors", "jinja2", "tqdm", "torch", "matplotlib", "IPython"} & set(sys.modules)
assert not heavy, heavy
assert not logging.getLogger().handlers
"""


def test_importing_is_cheap_and_silent() -> None:
    result = run_python("-c", IMPORT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
