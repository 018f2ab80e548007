"""The prefix cache: every conversation's tokens in one tree, every common token stored and computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Protocol, Union

import numpy as np

from . import _core
from ._amounts import amounts
from ._arguments import refusal
from ._live import Live
from ._message_ends import message_ends as ends_of
from ._message_ends import special_ids
from ._paths import path_text
from ._quotas import Quota, Share
from ._spacing import spacing
from ._values import Node, make_nodes
from .errors import ArgumentTypeError, FormatError
from .explain import Explanation
from .stores import Store, open_store

Cache = Union[_core.CausalCache, _core.RecurrentCache, _core.HybridCache]
Caches = Union[Cache, Sequence[Cache]]
Bytes = Union[None, int, str]
Key = Union[bytes, bytearray, Sequence[Union[bytes, bytearray]]]  # or the newest, then older ones
Keys = Union[None, Key, Mapping[str, Key]]
Decode = Callable[[list[int]], str]


class Texts(Protocol):
    """A tokenizer: text is read and shown by it."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


_HOST_SHARE = 0.25  # of the machine's memory, for host_bytes="auto"
_HOST_POOLS = 4  # times the device pools, for host_bytes="auto"


class PrefixCache(Live, _core.PrefixCache):
    """Every conversation's tokens in one tree; the K/V of common tokens is stored and computed once.

    ``caches``: the caches of the model's layers, one or a list: CausalCache, also with a window or chunks,
    RecurrentCache, and HybridCache, which stands for its parts. Each belongs to one PrefixCache at a time. An empty
    list is for models without state.
    ``fingerprint``: which weights the K/V come from. ``host_bytes``: cap of the host tier: bytes, a text such as
    "512MiB", 0 or None for no host tier, or "auto": a quarter of the machine's memory, at most four times the
    device pools. ``disk``: folder of the disk tier, made when it is missing; one PrefixCache at a time has it.
    What leaves the device and what closing sessions leave is written there in the background; the next
    PrefixCache on the folder has it. It needs a ``fingerprint`` and a host tier. ``disk_bytes``: its cap; None:
    half of what is free on its file system. ``disk_after``: how many sessions must have asked for tokens before they
    are written in the background; with 2 a prompt that nobody sends again is never written, and goes when host memory
    needs room. What is pinned or paged out to the disk counts as asked for. ``flush`` and ``save`` write everything
    whatever it is. ``store``: what several processes share: the URL of a Redis or Valkey
    server, or any object with ``get``, ``put`` and ``delete`` (``kvtrie.stores``). What closing sessions leave is
    sent there in the background; an unknown prompt is looked up there. It needs a ``fingerprint`` and a host
    tier, some of which is set aside for sending. ``store_deadline``: seconds of ``clock`` that one ``begin`` or
    ``restore`` may wait for it, in all; then it goes on with what has come. None: as long as it takes. ``policy``:
    which state is evicted first when room is needed: "lru", "slru" or "cost". ``load``: "auto" computes again
    what is in a lower tier or in the store where the clock measured that to be faster, "always" loads it.
    ``checkpoint_every``: distance of spaced restore points in tokens, for caches whose state exists only at restore
    points; None: 16 where those are short convolutions' and take no more than K and V of so many, else 512.
    ``growth``: cells reserved ahead of a growing session. ``clock``: a callable that returns seconds, for ages, times
    to live and what steps and page-ins take; None: the system's steady clock, and for steps the device's own.
    ``ttl``: seconds after which state that nobody used goes from every tier, at the next call or one 64th of it later;
    None: it stays until room is needed. What is pinned or in use stays. ``keys``: to seal with what goes to the disk
    and the store, encrypted and authenticated: 32 random bytes for all namespaces (each gets a key of its own from
    them), or a dict with the key of each; the state of a namespace that is not in the dict then never leaves the
    process. A list of keys instead of one: sealed with the first, opened with any. Keys are in no message, ``repr``,
    log or figure. ``quotas``: what namespaces may have, by their names (``set_quota``); with an empty dict there are
    none yet. None: none can be set, and nothing is counted by namespace. ``suffix_index_tokens``: how many tokens the
    index has room for in which the drafter "suffix" looks (docs/drafts.md), about 28 bytes each; None: 1,048,576 from
    its first look on, 0: none, and "suffix" is refused. ``tokenizer``: what drawings, notebooks and
    ``explain`` show text by unless they are given a ``decode``, what ``explain`` reads a text by, and whose special
    tokens say where the messages of a prompt end (``begin``).

    Any thread may call; calls take turns. Nothing is shared across namespaces. Raises ``ArgumentError`` for no caches,
    a layer in two caches, or a cache that belongs to another PrefixCache.
    """

    def __init__(
        self,
        caches: Caches,
        *,
        fingerprint: str = "",
        host_bytes: Bytes = "auto",
        disk: str | os.PathLike[str] | None = None,
        disk_bytes: Bytes = None,
        disk_after: int = 1,
        store: str | Store | None = None,
        store_deadline: Optional[float] = 2.0,
        policy: str = "lru",
        load: str = "auto",
        checkpoint_every: Optional[int] = None,
        growth: int = 256,
        clock: Optional[Callable[[], float]] = None,
        ttl: Optional[float] = None,
        keys: Keys = None,
        quotas: Optional[Mapping[str, Quota]] = None,
        suffix_index_tokens: Optional[int] = None,
        tokenizer: Optional[Texts] = None,
    ) -> None:
        if tokenizer is not None and not (hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode")):
            raise refusal(tokenizer, "PrefixCache", "tokenizer", "one that can encode and decode, or None")
        if quotas is not None and not isinstance(quotas, Mapping):
            raise ArgumentTypeError(f"[PrefixCache] quotas: got {type(quotas).__name__}, allowed a dict by namespace")
        held = caches if isinstance(caches, (list, tuple)) else (caches,)
        if host_bytes is None:
            host_bytes = 0
        elif isinstance(host_bytes, str) and host_bytes == "auto":
            host_bytes = _automatic_host_bytes(held)
        shared = None if store is None else open_store(store)
        folder = None if disk is None else path_text(disk, "PrefixCache", "disk")
        super().__init__(
            caches,
            fingerprint=fingerprint,
            host_bytes=host_bytes,
            disk=folder,
            disk_bytes=_automatic_disk_bytes(folder) if disk_bytes is None and folder is not None else disk_bytes or 0,
            disk_after=disk_after,
            store=shared,
            store_max_value=getattr(shared, "max_value", None),
            store_deadline=store_deadline,
            policy=policy,
            load=load,
            checkpoint_every=spacing(held) if checkpoint_every is None else checkpoint_every,
            growth=growth,
            clock=clock,
            ttl=ttl,
            keys=keys,
            quotas=quotas is not None,
            suffix_index_tokens=suffix_index_tokens,
        )
        self._tokenizer = tokenizer
        self._caches = tuple(held)
        self._policy = policy
        self._special = special_ids(tokenizer) if _has_states(held) else ()
        for name, quota in (quotas or {}).items():
            self.set_quota(name, **quota)

    def begin(
        self,
        tokens: _core.Integers,
        namespace: str = "default",
        *,
        reuse_all: bool = False,
        use: bool = True,
        publish: bool = True,
        atomic: Optional[_core.Spans] = None,
        message_ends: Optional[_core.Integers] = None,
    ) -> _core.Session:
        """A session that reuses as much of the prompt as possible.

        ``tokens``: any integer sequence or array; contiguous int32 arrays are not copied. At least one token is left to
        compute, so that there are logits to go on from, unless ``reuse_all``. ``use=False`` reuses nothing;
        ``publish=False`` shares nothing that this session computes. ``atomic``: spans (begin, end) that are reused as
        one or not at all, such as groups of tokens that see each other; items of ``kv.media`` are found by themselves.
        The same tokens with and without such a span are different: the other calls that take tokens take ``atomic``.

        ``message_ends``: lengths of the prompt at which messages end, ascending, where later prompts are likely to part
        from it. Recurrent layers keep a state there, in place of those every ``checkpoint_every`` tokens around it;
        ends closer than a sixteenth of that to the one before, and models without recurrent layers, do without. None:
        where the special tokens of the cache's ``tokenizer`` say; an empty list: none.

        Raises ``ArgumentError`` for no tokens, negative ones that are no media item, more than the smallest cache of
        full attention has cells, or ends that do not ascend from 1 to the prompt's length.
        """
        if message_ends is None:
            message_ends = ends_of(tokens, self._special) if self._special else ()
        return super().begin(
            tokens,
            namespace,
            reuse_all=reuse_all,
            use=use,
            publish=publish,
            atomic=atomic,
            message_ends=message_ends,
        )

    @property
    def caches(self) -> list[Cache]:
        """The caches it drives, in the order they were given."""
        return list(self._caches)

    @property
    def tokenizer(self) -> Optional[Texts]:
        """The tokenizer that text is shown by."""
        return self._tokenizer

    @property
    def policy(self) -> str:
        """Which state goes first when room is needed."""
        return self._policy

    @classmethod
    def open(cls, path: str | os.PathLike[str], caches: Caches, **options: Any) -> PrefixCache:
        """A cache that continues with what ``save`` or a disk tier left in the folder ``path``, and keeps it there.

        The same as ``PrefixCache(caches, disk=path, **options)``, but something has to be there: ``FormatError``
        otherwise. Conversations are known at once; their bytes are read when they are needed.
        """
        folder = path_text(path, "PrefixCache.open")
        if not os.path.isfile(os.path.join(folder, "lock")):
            raise FormatError(f"[PrefixCache.open] path: got {folder!r}, allowed a folder that kvtrie saved to")
        return cls(caches, disk=folder, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything that is known into a folder, in place of what a cache saved there before.

        ``PrefixCache.open`` continues from it, even in another process: every conversation stands at its last restore
        point. Needs a fingerprint and a host tier. Raises ``FormatError`` when it cannot all be written.
        """
        self._save(path_text(path, "save"))

    def explain(
        self,
        tokens: str | _core.Integers,
        namespace: str = "default",
        *,
        atomic: Optional[_core.Spans] = None,
        decode: Optional[Decode] = None,
    ) -> Explanation:
        """Why ``begin`` would reuse no more of a prompt: a ``kvtrie.results.Explanation``. Changes nothing, asks no
        store.

        It names the nearest branch and the first token that differs, what each kind of state could go on from, what
        the rest takes, and what would mend it. ``tokens`` may be a text where the cache has a ``tokenizer``, which
        encodes it as a prompt. ``decode`` turns token ids into the text that it shows; None: the tokenizer's. Arguments
        and errors else as for ``plan``.
        """
        if isinstance(tokens, str):
            if self._tokenizer is None:
                raise refusal(tokens, "explain", "tokens", "integers, or a text where the cache has a tokenizer")
            tokens = list(self._tokenizer.encode(tokens))
        fields = self._explain(tokens, namespace, atomic=atomic)
        return Explanation(np.array(tokens, np.int32), namespace, fields, self._decode_by(decode))

    def set_quota(self, namespace: str = "default", *, most: Share = 1.0, least: Share = 0.0) -> None:
        """Sets the most that a namespace may have of each pool and tier, and the least that others leave it.

        ``most``: its live and idle state together. A claim beyond it first evicts idle state of this namespace, in the
        usual order, and never that of others; what is live is refused with ``CacheFullError``. ``least``, its floor:
        room that no other namespace gets, whether it is used or not; idle state within it goes for claims of its own, a
        time to live and calls without a namespace only. Either is a share of everything, 0 to 1, of what the caps are
        now, or a dict with any of ``cells``, ``slots`` (an int for all caches, or a list), ``host_bytes`` and
        ``disk_bytes``; what it does not name has no limit, or no floor. A quota replaces the one before.

        It holds at once: idle state beyond ``most`` goes, and that of others where a floor lacks room. Raises
        ``CacheFullError``, with nothing changed, where live sessions and pins hold that; ``ArgumentError`` for a floor
        above the most, or floors that come to more than there is; ``NotSupportedError`` for a cache made without
        ``quotas``. Sends to a store are not counted.
        """
        self._set_quota(namespace, amounts(self, most, "most"), amounts(self, least, "least"))

    def nodes(self) -> list[Node]:
        """The nodes of the tree now, parents before their children."""
        return make_nodes(self._nodes())

    def tree(self, decode: Optional[Decode] = None, **options: Any) -> str:
        """The tree as text, one line a node. ``decode`` turns token ids into text for labels; None: the tokenizer does.

        Further ``options``: those of ``kvtrie.viz.tree_text``.
        """
        from .viz.text import tree_text

        return tree_text(self, self._decode_by(decode), **options)

    def to_dot(self, decode: Optional[Decode] = None, **options: Any) -> str:
        """The tree in DOT, for Graphviz. ``options``: those of ``kvtrie.viz.tree_dot``."""
        from .viz.dot import tree_dot

        return tree_dot(self, self._decode_by(decode), **options)

    def to_svg(self, decode: Optional[Decode] = None, **options: Any) -> str:
        """The tree as an SVG picture. ``options``: those of ``kvtrie.viz.tree_svg``."""
        from .viz.svg import tree_svg

        return tree_svg(self, self._decode_by(decode), **options)

    def _repr_html_(self) -> str:
        from .viz.notebook import tree_html

        return "<p>a closed kvtrie.PrefixCache</p>" if self.closed else tree_html(self, self._decode_by(None))

    def _decode_by(self, decode: Optional[Decode]) -> Optional[Decode]:
        return self._tokenizer.decode if decode is None and self._tokenizer is not None else decode

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], where: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not hasattr(self, "_caches"):  # its creation failed: nothing of it may be asked
            return "<kvtrie.PrefixCache, not created>"
        if self.closed:
            return "<kvtrie.PrefixCache, closed>"
        now = self.stats()
        return (
            f"<kvtrie.PrefixCache {now['nodes']} nodes, {now['tokens']} tokens, {now['sessions']} sessions, "
            f"{now['device_bytes']} device bytes, {now['host_bytes']} host bytes>"
        )


def _automatic_disk_bytes(folder: str) -> int:
    """Half of what is free where the folder is, or will be, with what it has already."""
    path = os.path.abspath(folder)
    present = 0
    if os.path.isdir(path):
        present = sum(each.stat(follow_symlinks=False).st_size for each in os.scandir(path) if each.is_file())
    else:
        path = os.path.dirname(path)
    space = os.statvfs(path) if os.path.isdir(path) else None
    return present + (space.f_bavail * space.f_frsize // 2 if space is not None else 0)


def _has_states(caches: Sequence[Cache]) -> bool:
    parts = [part for cache in caches for part in (cache.caches if isinstance(cache, _core.HybridCache) else [cache])]
    return any(isinstance(part, _core.RecurrentCache) for part in parts)


def _automatic_host_bytes(caches: Sequence[Cache]) -> int:
    """A quarter of the machine's memory, but no more than four times the pools."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    pools = sum(cache.nbytes for cache in caches if hasattr(cache, "nbytes"))
    return min(int(_HOST_SHARE * memory), _HOST_POOLS * pools)


def _plan_text(plan: _core.ReusePlan) -> str:
    why = f", {plan.reason}" if plan.reason else ""
    moved = f", {plan.bytes_moved} bytes to move" if plan.bytes_moved else ""
    return f"<kvtrie.ReusePlan {plan.reusable} of {plan.matched} matched tokens, {plan.tier or 'computed'}{moved}{why}>"


_core.ReusePlan.__repr__ = _plan_text  # type: ignore[method-assign, assignment]
