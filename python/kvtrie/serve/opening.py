"""The parts of a server, made from its options: a model, a cache on it, and settings.

The command line (cli/serve.py) and the replicas of several machines (kvtrie.ray.scale) both come here. Nothing prints.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import models
from .._paths import path_text
from ..draft import NAMES
from ..errors import ArgumentError, BusyError, NotSupportedError
from ..models.base import Model
from ..models.tokenizer import Tokenizer
from ..models.weights import Progress
from ..prefix_cache import PrefixCache
from .settings import CONTEXT, CONVERSATIONS, Settings
from .state import default_bytes, own_place

_MOST_FOLDERS = 1024  # of one model on one machine


@dataclass(frozen=True)
class ServeOptions:
    """The options of a server. Sizes are in bytes or texts such as "512MiB", lengths in tokens.

    ``model``: as ``kv.models.load`` takes it, "tiny", or None for the default one; ``name``: what clients call it;
    ``device``, ``dtype`` and ``precision``: as for ``kv.models.load``.
    ``context``: the longest conversation with its answer; ``capacity``: tokens that the device has room for.
    ``disk``: the folder of the disk tier, "none" for no such tier, or None for one below ~/.cache by the model's
    fingerprint. ``own_folder``: several servers share ``disk``, each has the first folder in it that no other has.
    ``store``: the URL of a store that several servers share; ``store_deadline``: the seconds that one request may spend
    on asking it. ``draft``: names of drafters (docs/drafts.md). The rest: ``kv.PrefixCache`` and ``Settings``.
    """

    model: str | None = None
    name: str | None = None
    device: str | None = None
    dtype: str | None = None
    precision: str = "auto"
    kv_dtype: str = "float16"
    context: int | None = None
    capacity: int | None = None
    host_bytes: str | int = "auto"
    disk: str | None = None
    disk_bytes: str | int | None = None
    disk_after: int = 2
    own_folder: bool = False
    store: str | None = None
    store_deadline: float = 2.0
    max_tokens: int = 4096
    max_sessions: int = 8
    max_waiting: int = 64
    temperature: float = 1.0
    keys: Mapping[str, str] = field(default_factory=dict)
    admin_key: str | None = None
    hosts: tuple[str, ...] = Settings.hosts
    origins: tuple[str, ...] = ()
    drop_lines: tuple[str, ...] = ()
    ignore_fields: tuple[str, ...] = ()
    chat_template: str | None = None
    freeze_clock: str | None = None
    draft: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """``note``: what there is to say about the choice of the model, or "". ``folder``: where state is kept, or None;
    ``unkept``: why there is none, where nobody asked for that."""

    model: Model
    name: str
    cache: PrefixCache
    settings: Settings
    folder: Path | None
    note: str = ""
    unkept: str = ""


def open_server(options: ServeOptions, progress: bool | Progress | None = None) -> Opened:
    """Loads the model, compiles what it needs, and opens the cache.

    Raises what ``kv.models.load`` and ``kv.PrefixCache`` do, ``kv.errors.NotSupportedError`` for a model without a
    tokenizer, ``kv.errors.BusyError`` where another server has the folder, ``kv.errors.ArgumentError`` where one that
    was named cannot be used.
    """
    chosen = models.default.choose(options.model)
    model = models.load(
        chosen.path,
        options.device,
        options.dtype,
        precision=options.precision,
        mtp="mtp" in options.draft,
        progress=progress,
    )
    if not model.has_tokenizer:
        raise NotSupportedError("[serve] model: there is no tokenizer, so there is no text to answer with")
    use_template(model.tokenizer, options)
    settings = settings_of(options, model)
    model.warm_up(options.kv_dtype, progress=progress)  # so that no request waits for compilers
    cache, folder, unkept = _open_cache(options, model, settings)
    if folder is not None:
        settings = replace(settings, responses=folder / "responses.sqlite")
    return Opened(model, options.name or chosen.name, cache, settings, folder, chosen.note, unkept)


def use_template(tokenizer: Tokenizer, options: ServeOptions) -> None:
    """The chat template of a file in place of the model's own, where the options name one. Raises
    ``kv.errors.ArgumentError`` for a file that cannot be read, or is no template."""
    if options.chat_template is None:
        return
    try:
        tokenizer.chat_template = Path(options.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"[serve] --chat-template: cannot be read: {error}") from error
    tokenizer.template()


def settings_of(options: ServeOptions, model: Model) -> Settings:
    """The server's settings. Raises ``kv.errors.ArgumentError`` for a context that the model or the device has no room
    for, and for a drafter that there is none of."""
    limits = [model.config.max_position_embeddings, model.config.position_limit(), options.capacity]
    most = min(limit for limit in limits if limit is not None)
    context = min(most, CONTEXT) if options.context is None else options.context
    if not 16 <= context <= most:
        raise ArgumentError(f"[serve] --context: got {context}, allowed 16 to {most}")
    for name in options.draft:
        if name not in NAMES:
            raise ArgumentError(f"[serve] --draft: got {name!r}, allowed {', '.join(NAMES)}, joined by commas, or none")
    return Settings(
        context,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        max_sessions=options.max_sessions,
        max_waiting=options.max_waiting,
        keys=options.keys,
        admin_key=options.admin_key,
        hosts=options.hosts,
        origins=options.origins,
        volatile=options.drop_lines,
        ignored=options.ignore_fields,
        freeze_clock=options.freeze_clock,
        draft=options.draft,
    )


def _open_cache(options: ServeOptions, model: Model, settings: Settings) -> tuple[PrefixCache, Path | None, str]:
    """The cache, its folder, and why there is none."""
    caches = model.caches(capacity=options.capacity or CONVERSATIONS * settings.context, dtype=options.kv_dtype)
    host = _size(options.host_bytes)
    opened = functools.partial(
        PrefixCache, caches, fingerprint=model.fingerprint, host_bytes=host,
        store=options.store, store_deadline=options.store_deadline,
    )  # fmt: skip
    if options.disk == "none":
        return opened(), None, ""

    def on(folder: Path) -> PrefixCache:
        cap = default_bytes(folder) if options.disk_bytes is None else _size(options.disk_bytes)
        return opened(disk=folder, disk_bytes=cap, disk_after=options.disk_after)

    folder, why = own_place(model.fingerprint) if not options.disk else (_named(options.disk), "")
    if folder is None:
        return opened(), None, why
    try:
        return (*(_first_free(folder, on) if options.own_folder else (on(folder), folder)), "")
    except OSError as error:
        raise ArgumentError(
            f"[serve] --disk: got {str(folder)!r} ({error.strerror}), allowed a folder that can be written, or none"
        ) from error


def _named(folder: str) -> Path:
    return Path(path_text(folder, "serve", "--disk"))


def _first_free(parent: Path, on: Callable[[Path], PrefixCache]) -> tuple[PrefixCache, Path]:
    """The first folder in ``parent`` that no other server has: one that ended left its state there for the next."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in itertools.count():
        folder = parent / str(number)
        try:
            return on(folder), folder
        except BusyError:
            if number + 1 == _MOST_FOLDERS:
                raise
    raise AssertionError("count() has no end")


def _size(given: str | int) -> str | int:
    return int(given) if isinstance(given, str) and given.isdigit() else given
