"""Prefix trees that others publish, and ours, behind one small interface: what bench_trie.py runs side by side.

Each side keeps tokens in the form its own users hand over (``form``) and does with an operation what its own server
does. What a side does not do is None: ``match_short`` (end inside an edge), ``lock``. Only the parts that are measured
are imported: packages whose own imports want a GPU are entered through stub packages that have a ``__path__``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = Path(__file__).resolve().parents[2] / "build" / "peers" / "sources"
PREFIX, OWN = 512, 64  # tokens: shared, and of each leaf


class Side:
    """One tree. ``form`` makes the tokens of a call from an int32 array, off the clock."""

    name = ""
    does_not = ""  # for people
    most_leaves = 100_000

    def form(self, tokens: np.ndarray) -> Any:
        return tokens

    def insert(self, tokens: Any) -> Any:
        raise NotImplementedError

    def match(self, tokens: Any) -> int:
        """Tokens that were found."""
        raise NotImplementedError

    match_short: Callable[[Any], Any] | None = None
    find: Callable[[Any], Any] | None = None  # a node to lock, off the clock
    lock: Callable[[Any], Any] | None = None  # lock and unlock

    def evict(self) -> None:
        """Give up the least recently used leaf."""
        raise NotImplementedError


class Ours(Side):
    """``kvtrie.trie.PrefixTrie``. A match changes nothing, so the cut is made by inserting the shorter sequence."""

    name = "kvtrie PrefixTrie"
    most_leaves = 1_000_000

    def __init__(self) -> None:
        from kvtrie.trie import PrefixTrie

        self.trie = PrefixTrie()

    def insert(self, tokens: Any) -> Any:
        return self.trie.insert(tokens, 1)

    def match(self, tokens: Any) -> int:
        return int(self.trie.match(tokens)[0])

    def match_short(self, tokens: Any) -> Any:
        return self.trie.insert(tokens)

    def find(self, tokens: Any) -> Any:
        return self.trie.match(tokens)[1]

    def lock(self, node: Any) -> Any:
        self.trie.lock(node)
        self.trie.unlock(node)

    def evict(self) -> None:
        self.trie.evict()


def _enter(*packages: str) -> None:
    """Packages without their ``__init__``: only what is asked for below them is imported."""
    for name in packages:
        module = types.ModuleType(name)
        module.__path__ = [str(SOURCES / "sglang" / Path(*name.split(".")))]
        sys.modules[name] = module


def _leave_out(name: str, **contents: Any) -> None:
    """A module that is imported on the way and not used by the tree; its names are classes that do nothing."""
    module = types.ModuleType(name)
    module.__dict__.update(contents)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return type(attribute, (), {})

    module.__getattr__ = missing  # type: ignore[method-assign]
    sys.modules[name] = module


def _sglang() -> None:
    """Make ``sglang.srt.mem_cache.radix_cache`` importable with torch, msgspec, pyzmq and pydantic alone."""
    if "sglang" in sys.modules:
        return
    packages = ("", ".srt", ".srt.mem_cache", ".srt.utils", ".srt.disaggregation", ".srt.observability")
    _enter(*("sglang" + name for name in packages))
    for name in ("allocator", "memory_pool"):
        _leave_out(f"sglang.srt.mem_cache.{name}")
    _enter("sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.kvcache")
    _leave_out("sglang.kernels.ops.kvcache.mla_buffer")
    _leave_out("sglang.srt.observability.metrics_collector")
    _leave_out("sglang.srt.runtime_context")
    _leave_out("sglang.srt.mem_cache.cpp_utils.native_hash")
    _leave_out("sglang.srt.utils.common", ceil_align=lambda value, to: -(-value // to) * to)


class _Allocator:
    """SGLang's pool of key/value slots, of which the tree needs no more than this."""

    device = "cpu"

    def free_segment(self, indices: Any, start_pos: int) -> None:
        pass


class SglangPython(Side):
    """SGLang's ``RadixCache`` with page size 1 and its default policy, lru. A match cuts the edge where it ends."""

    name = "SGLang RadixCache"

    def __init__(self) -> None:
        _sglang()
        import torch

        self.module = importlib.import_module("sglang.srt.mem_cache.radix_cache")
        self.tree = self.module.RadixCache.create_simulated(mock_allocator=_Allocator())
        self.slots = torch.arange(PREFIX + OWN)

    def form(self, tokens: np.ndarray) -> Any:
        return array("q", tokens.astype(np.int64).tobytes())

    def insert(self, tokens: Any) -> Any:
        return self.tree.insert(self.module.InsertParams(key=self.module.RadixKey(tokens), value=self.slots))

    def _match(self, tokens: Any) -> Any:
        return self.tree.match_prefix(self.module.MatchPrefixParams(key=self.module.RadixKey(tokens)))

    def match(self, tokens: Any) -> int:
        return int(self._match(tokens).device_prefix_len)

    def match_short(self, tokens: Any) -> Any:
        return self._match(tokens)

    def find(self, tokens: Any) -> Any:
        return self._match(tokens).last_device_node

    def lock(self, node: Any) -> Any:
        self.tree.inc_lock_ref(node)
        self.tree.dec_lock_ref(node)

    def evict(self) -> None:
        self.tree.evict(self.module.EvictParams(num_tokens=1))


class SglangRust(Side):
    """SGLang's tree core in Rust, compiled in its wheel, called as its adapter calls it, without the adapter's cost."""

    name = "SGLang Rust tree core"

    def __init__(self) -> None:
        import torch  # first: the module is linked with its libraries

        (path,) = (SOURCES / "sglang/sglang/srt/mem_cache/rust_tree_core").glob("mem_cache.*.so")
        spec = importlib.util.spec_from_file_location("mem_cache", path)
        if spec is None or spec.loader is None:
            raise ImportError(str(path))
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        params = self.module.TreeCoreInitParamsBinding(eviction_policy="lru", page_size=1, device="cpu")
        self.tree = self.module.RustUnifiedTreeCoreBinding(params, [0])
        self.slots = torch.arange(PREFIX + OWN)

    form = SglangPython.form

    def insert(self, tokens: Any) -> Any:
        return self.tree.insert(self.module.InsertParamsBinding(key=tokens, value=self.slots[: len(tokens)]))

    def _match(self, tokens: Any) -> Any:
        return self.tree.match_prefix(self.module.MatchParamsBinding(key=tokens))

    def match(self, tokens: Any) -> int:
        return int(self._match(tokens).device_prefix_len)

    def match_short(self, tokens: Any) -> Any:
        return self._match(tokens)

    def find(self, tokens: Any) -> Any:
        return self._match(tokens).last_device_node_id

    def lock(self, node: Any) -> Any:
        held = self.tree.inc_lock_ref(node)
        self.tree.dec_lock_ref(node, self.module.DecLockRefParamsBinding(node_id=held.node_id))

    def evict(self) -> None:
        self.tree.evict_device_start(0, 1)
        self.tree.evict_device_leaf(self.tree.evict_device_next_node(0, {0: 0}).node_id)
        self.tree.evict_device_end(0)


class SglangCpp(Side):
    """SGLang's ``RadixTreeCpp``, compiled at first use. Its wheels from 0.5.9 on hold it, the latest ones no longer."""

    name = "SGLang RadixTreeCpp"

    def __init__(self) -> None:
        folder = SOURCES / "sglang-cpp/sglang/srt/mem_cache/cpp_radix_tree"
        if not (folder / "tree_v2.cpp").exists():
            raise ImportError("no sources of it")
        import torch
        from torch.utils.cpp_extension import load

        sources = [str(folder / name) for name in ("tree_v2_binding.cpp", "tree_v2_debug.cpp", "tree_v2.cpp")]
        built = SOURCES.parent / "radix_tree_cpp"
        built.mkdir(exist_ok=True)
        flags = ["-O3", "-std=c++20"]  # its own
        module = load(name="radix_tree_cpp", sources=sources, extra_cflags=flags, build_directory=str(built))
        self.tree = module.RadixTree(False, None, 1, 1 << 30)
        self.slots = torch.arange(PREFIX + OWN)

    def form(self, tokens: np.ndarray) -> Any:
        return tokens.tolist()

    def insert(self, tokens: Any) -> Any:
        return self.tree.writing_through(tokens, self.slots[: len(tokens)])

    def match(self, tokens: Any) -> int:
        return sum(map(len, self.tree.match_prefix(tokens)[0]))

    def match_short(self, tokens: Any) -> Any:
        return self.tree.match_prefix(tokens)

    def find(self, tokens: Any) -> Any:
        return self.tree.match_prefix(tokens)[2]

    def lock(self, node: Any) -> Any:
        self.tree.lock_ref(node, True)
        self.tree.lock_ref(node, False)

    def evict(self) -> None:
        self.tree.evict(1)


class MlxLm(Side):
    """mlx-lm's ``PromptTrie`` with the queue of its ``LRUPromptCache``: one dict per token."""

    name = "mlx-lm PromptTrie"
    does_not = "lock; cut (it looks for the shortest longer entry instead)"
    most_leaves = 10_000  # 15 KB a leaf

    def __init__(self) -> None:
        # The class is plain Python in a file whose imports want mlx: it is taken out of the file.
        text = (SOURCES / "mlx-lm/mlx_lm/models/cache.py").read_text()
        begin, end = text.index("@dataclass\nclass PromptTrieResult"), text.index("class LRUPromptCache")
        module = types.ModuleType("mlx_lm_prompt_trie")
        sys.modules[module.__name__] = module
        head = "from dataclasses import dataclass\nfrom typing import Any, List, Optional\n"
        exec(compile(head + text[begin:end], "cache.py", "exec"), module.__dict__)
        self.trie = module.PromptTrie()
        self.queue: deque[Any] = deque()

    def form(self, tokens: np.ndarray) -> Any:
        return tokens.tolist()

    def insert(self, tokens: Any) -> Any:
        self.trie.add("model", tokens, 1)
        self.queue.append(tokens)

    def match(self, tokens: Any) -> int:
        found = self.trie.search("model", tokens)
        return len(tokens) if found.exact is not None else int(found.common_prefix)

    def match_short(self, tokens: Any) -> Any:
        return self.trie.search("model", tokens)

    def evict(self) -> None:
        self.trie.pop("model", self.queue.popleft())


class Cachetools(Side):
    """``cachetools.LRUCache`` of whole prompts: a plain hash map, for scale. The key is hashed in each call."""

    name = "cachetools LRUCache"
    does_not = "share, match a part, cut, lock: whole prompts only"

    def __init__(self) -> None:
        import cachetools

        self.cache: Any = cachetools.LRUCache(1 << 30)

    def insert(self, tokens: Any) -> Any:
        self.cache[tokens.tobytes()] = 1

    def match(self, tokens: Any) -> int:
        return len(tokens) if self.cache.get(tokens.tobytes()) else 0

    def evict(self) -> None:
        self.cache.popitem()


SIDES: tuple[type[Side], ...] = (Ours, SglangPython, SglangRust, SglangCpp, MlxLm, Cachetools)


def available(say: Callable[[str], None]) -> list[type[Side]]:
    """The sides that are installed; the others are named with the reason."""
    found = []
    for kind in SIDES:
        try:
            kind()
        except (ImportError, FileNotFoundError, ValueError) as error:
            say(f"left out: {kind.name} ({error})")
            continue
        found.append(kind)
    return found
