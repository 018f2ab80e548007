"""The public surface: what is there, that the typed stubs say the same, what importing costs."""

from __future__ import annotations

import ast
import importlib
import inspect
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
OWN_DUNDERS = {
    "__init__",
    "__enter__",
    "__exit__",
    "__len__",
    "__iter__",
    "__next__",
    "__eq__",
    "__copy__",
    "__getitem__",
}
OWN_DUNDERS |= {"__array__", "__dlpack__", "__dlpack_device__"}
OWN_PRIVATE = {"_explain", "_kv_with_spare", "_nodes", "_open_for_trial", "_open_with_times", "_save", "_save_programs"}
OWN_PRIVATE |= {"_set_quota", "_take_launch_times"}

# ---- stubs -----------------------------------------------------------------------------------------------------------


def arguments_of(signature: str) -> list[tuple[str, str, bool]]:
    """(kind, name, has a default) of each argument in "f(a, b=1, *, c) -> d"; without self."""
    function = ast.parse(f"def {signature}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return arguments(function)


def arguments(function: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    missing = len(positional) - len(a.defaults)
    found = [("positional", arg.arg, index >= missing) for index, arg in enumerate(positional) if arg.arg != "self"]
    if a.vararg is not None:
        found.append(("rest", "args", False))
    return found + [("keyword", arg.arg, default is not None) for arg, default in zip(a.kwonlyargs, a.kw_defaults)]


def documented_signature(function: Any) -> str:
    """The first line of a bound function's docstring, as Python that can be parsed."""
    text = " ".join((function.__doc__ or "").split("\n")[0].split())
    return text.replace("kvtrie._core.", "").replace("ops.", "")


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


def members(owner: Any) -> dict[str, Any]:
    names = vars(owner)
    if isinstance(owner, ModuleType):
        return {name: value for name, value in names.items() if not name.startswith("__")}
    return {
        name: value.__func__ if isinstance(value, staticmethod) else value
        for name, value in names.items()
        if not name.startswith("_") or name in OWN_DUNDERS or name in OWN_PRIVATE
    }


def compare(owner: Any, stub: Any, path: str, faults: list[str]) -> None:
    declared: dict[str, Any] = {}
    for node in stub.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            declared[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_alias = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
            if not is_alias and not node.target.id.startswith("__"):
                declared[node.target.id] = node
    present = members(owner)
    if "__init__" in present and "Initialize self" in (present["__init__"].__doc__ or ""):
        del present["__init__"]  # cannot be made from Python
    for name in sorted(set(declared) - set(present) - {"__hash__", "__iter__"}):
        if not (name in OWN_DUNDERS and hasattr(owner, name)):
            faults.append(f"{path}.{name}: only in the stub")
    for name in sorted(set(present) - set(declared) - {"__iter__"}):
        faults.append(f"{path}.{name}: not in the stub")
    for name in sorted(set(present) & set(declared)):
        value, node = present[name], declared[name]
        if isinstance(node, ast.ClassDef):
            compare(value, node, f"{path}.{name}", faults)
            continue
        if not isinstance(node, ast.FunctionDef):
            continue
        is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list)
        if isinstance(value, property) or is_property:
            if not (isinstance(value, property) and is_property):
                faults.append(f"{path}.{name}: a property in one of the two only")
            continue
        real = arguments_of(documented_signature(value))
        if real != arguments(node):
            faults.append(f"{path}.{name}: the module has {real}, the stub {arguments(node)}")
        if signed_arguments(value) != real:
            faults.append(f"{path}.{name}: inspect.signature says {inspect.signature(value)}")


def test_the_stubs_are_those_of_the_module() -> None:
    faults: list[str] = []
    compare(_core, STUB, "_core", faults)
    assert faults == []


def test_signatures_of_what_is_native() -> None:
    """With defaults, bound and not, and of classes; the documentation is not shorter for it."""
    shown = "(self, tokens, namespace='default', *, reuse_all=False, use=True, publish=True, atomic=None)"
    assert str(inspect.signature(kv.PrefixCache.begin)) == shown
    with kv.PrefixCache([]) as cache:
        assert str(inspect.signature(cache.begin)) == shown.replace("self, ", "")
    assert str(inspect.signature(kv.Device)) == "(name=None)"
    assert str(inspect.signature(kv.devices)) == "()"
    assert str(kv.PrefixCache.begin.__doc__).startswith("begin(self: kvtrie._core.PrefixCache, tokens: object, ")


def test_the_comparison_sees_differences() -> None:
    assert arguments_of("f(self, a: int, b: object = 'x', *args, c: bool = True) -> None") == [
        ("positional", "a", False),
        ("positional", "b", True),
        ("rest", "args", False),
        ("keyword", "c", True),
    ]
    faults: list[str] = []
    compare(
        _core.Snapshot,
        ast.parse("class A:\n  @property\n  def start(self): ...\n  def more(self): ...").body[0],
        "S",
        faults,
    )
    assert "S.more: only in the stub" in faults
    assert "S.nbytes: not in the stub" in faults


# ---- the surface -----------------------------------------------------------------------------------------------------

SURFACE = {
    kv: "PrefixCache Session Step Generation generate generate_batch Batch Batcher Request Sampling Sampler score "
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
    "sigmoid softplus relu_squared clamp ssd add mul softmax concat split attention argmax sample warm_up",
    kv.caches.CausalCache: "start_forward put get attend set_causal copy_prefix remove can_resume length defrag nbytes "
    "free_cells snapshot restore split merge prepare_snapshots take_snapshots",
    kv.caches.Snapshot: "start end nbytes shared_nbytes tier",
    kv.PrefixCache: "begin batch plan restore page_out evict set_limits set_quota remove_quota usage pin unpin stats "
    "check tree nodes to_dot to_svg "
    "_repr_html_ close save open flush",
    kv.Session: "reused matched reason tier bytes_moved remaining prefill append decode branch rewind "
    "can_rewind checkpoint shift length tokens kv kv_all close __enter__ __exit__",
    kv.Step: "tokens positions sequences sessions attend attend_qkv put get conv gated_delta ssd set_causal states "
    "put_states boundaries",
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
