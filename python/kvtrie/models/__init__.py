"""Models: Llama, Qwen, Gemma 3, their hybrids and mixtures, from Hugging Face folders or GGUF files, driven by steps.

A model computes the steps of sessions; it holds no state of a conversation:

    model = kv.models.load("path/to/folder or file.gguf")
    cache = kv.PrefixCache(model.caches(capacity=8192), fingerprint=model.fingerprint)
    with cache.begin(model.tokenizer.encode("Once upon a time")) as session:
        for step in session.prefill(chunk=512):
            logits = model(step)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._arguments import flag, progress_of, refusal
from .._core import Device
from .._paths import path_text
from ..errors import ArgumentError, FormatError, IgnoredWarning, NotSupportedError
from . import default
from .account import settle_config
from .adapter import adapter_of, settle_adapter, without_base
from .base import DTYPES, Model
from .config import ModelConfig
from .families import ARCHITECTURES as _ARCHITECTURES
from .families import FAMILIES as _FAMILIES
from .freed import give_back
from .hub import find_model
from .mtp import build_head, head_sources
from .reader import Raw
from .settings import Account, Settled
from .stored import compare_frequencies, ignores, settle_head
from .tokenizer import Detokenizer, Tokenizer, of_another_form
from .weight_table import PRECISIONS
from .weights import (
    Progress,
    WeightSource,
    check_table,
    default_dtype,
    from_arrays,
    open_folder,
    read_json,
    tqdm_progress,
)

__all__ = [
    "Detokenizer",
    "Model",
    "ModelConfig",
    "Settled",
    "Tokenizer",
    "architectures",
    "default",
    "describe",
    "from_weights",
    "load",
    "load_tokenizer",
]

_ANOTHER_FORM = "got a tokenizer in a form that is not read, allowed tokenizer.json; token ids work without"


def __getattr__(name: str) -> type[Model]:
    """A family's class by its name: ``kv.models.Llama``."""
    for family in _FAMILIES.values():
        if family.__name__ == name:
            return family
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(family.__name__ for family in _FAMILIES.values())])


def architectures() -> list[str]:
    """The names in ``config.json``'s ``architectures`` that can be loaded."""
    return sorted(_ARCHITECTURES)


def load(
    path: str | os.PathLike[str],
    device: str | Device | None = None,
    dtype: str | None = None,
    *,
    precision: str = "auto",
    mtp: bool = False,
    progress: bool | Progress | None = None,
) -> Model:
    """Loads a Hugging Face checkpoint folder, a GGUF file (docs/gguf.md), or a model by its name in the hub's cache.

    A folder holds ``config.json``, ``model.safetensors`` (or shards with their index) and, if there is text to be
    encoded, ``tokenizer.json`` with ``tokenizer_config.json``; or one GGUF file. An adapter beside them is merged
    (docs/models.md says which, and what becomes of each setting). A name, "organisation/model", is
    looked up where ``hf download`` puts it; nothing is downloaded. "smollm2" is what ``python -m kvtrie download``
    gets and "tiny" the model of examples/tiny, where there is no such path. ``device``: a ``kv.Device``, a name, or
    None for the best one. ``dtype``: how weight matrices are kept on the device, "float32", "float16", "bfloat16",
    "q8_0", "q5_1", "q5_0", "q4_1", "q4_0" or "stored".

    The default is exact where weights are not quantised: as in the file, and float32 where matrices differ. Where
    they are, it is "stored": blocks that kernels know (docs/gguf.md) stay as they are; others become float16, which
    moves each number by up to 2^-11 of it.

    "q8_0" (``kv.ops.pack``) takes 8.5 bits a number, "q4_0" to "q5_1" take 4.5 to 6; they are faster where memory
    is the limit, on CPU devices. They round: matrices and experts become blocks, the head q8_0; the embedding,
    routers and the small gates of recurrent layers float16. What "q4_0" to "q5_1" lost is in ``model.losses``.

    ``precision``: how products of blocks are computed. "exact": in float32, each with the bits that the numbers in
    the blocks give. "auto": the same, but with the processor's integer units where it has them (AVX-512 VNNI, AMX),
    for which activations are rounded to 16 bits in groups of 32. "fast": with these units and activations of 8
    bits, which loses more. NVIDIA's GPUs from compute capability 8.0 on multiply float16, bfloat16 and blocks by
    matrix instructions: "auto" makes two halves of an activation, 22 bits, and "fast" one, 11 bits, for attention,
    too; where weights are bfloat16, three terms of 8 bits and two (docs/gpu.md). AMD's and Intel's GPUs with such
    instructions multiply the same weights so. On other devices both are as "exact". docs/integers.md has what each
    gains and loses. A row's bits never depend on the rows beside it. ``fingerprint`` tells precisions apart even where
    they are the same, so that no cache, file or store made with one answers another.

    ``mtp``: whether the prediction head that the checkpoint brings is loaded, too, as ``model.mtp``, for
    ``draft="mtp"``; answers are the same without (docs/drafts.md). ``progress``: a callable (done_bytes, total_bytes),
    or True for a tqdm bar on stderr.

    Raises ``kv.errors.FormatError`` naming the file that is missing, damaged or inconsistent, and
    ``kv.errors.NotSupportedError`` for an architecture or feature that is not computed here. Nothing stays behind after
    an error.
    """
    progress_of(progress, "models.load")
    check_dtype(dtype, "models.load")
    check_precision(precision, "models.load")
    kept = Kept(device, dtype, precision, flag(mtp, "models.load", "mtp"))
    found = _model_at(path, "models.load")
    if found.is_dir():
        return _load_folder(found, kept, progress)
    from .gguf import read  # takes half a second, most of it for packages that nothing else needs

    parts = read(found, kept.mtp)
    account = {found.name: parts.settled}
    return _build(parts.family, parts.config, parts.sources, kept, parts.tokenizer, progress, account)


def _model_at(path: str | os.PathLike[str], where: str) -> Path:
    """The folder or file that is meant: a path before a name."""
    text = path_text(path, where)
    meant = text in default.NAMES and not os.path.exists(text)
    return find_model(str(default.named(text)) if meant else text)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer of what :func:`load` would load, without its weights; None where there is none.

    Raises ``kv.errors.FormatError`` as it does, and ``kv.errors.NotSupportedError`` for a folder that has one in
    another form only.
    """
    found = _model_at(path, "models.load_tokenizer")
    if found.is_dir():
        other = of_another_form(found)
        if other is not None:
            raise NotSupportedError(f"[models.load_tokenizer] {other}: {_ANOTHER_FORM}")
        return Tokenizer.load(found)
    from .gguf import read

    return read(found).tokenizer


class Folder(NamedTuple):
    """The small files of a folder, read: which family computes it, and what became of each key."""

    family: type[Model]
    raw: Raw
    generation: Raw
    where: str  # the path of config.json
    account: Account


def _read_folder(folder: Path) -> Folder:
    alone = without_base(folder)
    if alone is not None:
        raise alone
    raw = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json", required=False)
    where = str(folder / "config.json")
    family = _family(raw, where)
    account = {**settle_config(family, raw, generation, where), **settle_adapter(folder)}
    return Folder(family, raw, generation, where, account)


class Kept(NamedTuple):
    """Where and how a model is kept, and what of it, as :func:`load` takes it."""

    device: str | Device | None
    dtype: str | None
    precision: str
    mtp: bool


def _load_folder(folder: Path, kept: Kept, progress: bool | Progress | None) -> Model:
    found = _read_folder(folder)
    family = found.family
    config = family.parse_config(found.raw, found.generation, found.where)
    adapter, stored = adapter_of(folder), open_folder(folder)
    if adapter is not None:
        stored = adapter.over_stored(stored, family.name_in_transformers)
    config, sources = _settled_sources(family, config, stored)
    if adapter is not None:
        config, sources = adapter.over(config, sources)
    check_table(sources, family.tensor_shapes(config), ignores(family.ignored))
    other = of_another_form(folder)
    if other is not None:
        warnings.warn(f"[models.load] {other}: {_ANOTHER_FORM}", IgnoredWarning, stacklevel=3)
    return _build(family, config, sources, kept, Tokenizer.load(folder), progress, found.account)


def _settled_sources(
    family: type[Model], config: ModelConfig, stored: Mapping[str, WeightSource]
) -> tuple[ModelConfig, dict[str, WeightSource]]:
    """Under the names that the family uses; what is stored beyond them is compared."""
    config, sources = settle_head(config, family.adapt(config, stored))
    ropes = [group.rope for group in family.attention_groups(config) if group.rope is not None]
    compare_frequencies(sources, config.head_dim, ropes)
    return config, sources


def describe(path: str | os.PathLike[str]) -> Account:
    """The account of each key of a model's small files, without its weights: as ``model.account`` of :func:`load`.

    Raises ``kv.errors.NotSupportedError`` where one is refused, as :func:`load` does, and ``kv.errors.FormatError`` for
    a damaged file.
    """
    found = _model_at(path, "models.describe")
    if not found.is_dir():
        from .gguf import read

        return {found.name: read(found).settled}
    folder = _read_folder(found)
    folder.family.parse_config(folder.raw, folder.generation, folder.where)
    return folder.account


def from_weights(
    config: ModelConfig | Raw,
    weights: Mapping[str, Any],
    device: str | Device | None = None,
    dtype: str | None = None,
    *,
    precision: str = "auto",
    mtp: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Model:
    """A model from arrays in memory, named as in a checkpoint; ``config`` as in ``config.json`` or already parsed.

    ``device``, ``dtype``, ``precision`` and ``mtp`` as for :func:`load`.
    """
    check_dtype(dtype, "models.from_weights")
    check_precision(precision, "models.from_weights")
    for name, value in (("config", config), ("weights", weights)):
        if not isinstance(value, (ModelConfig, Mapping)):
            raise refusal(value, "models.from_weights", name, "a mapping")
    account: Account = {}
    if isinstance(config, ModelConfig):
        family = family_of(config)
    else:
        family = _family(config, "config")
        account = settle_config(family, config, {}, "config")
        config = family.parse_config(config)
    config, sources = _settled_sources(family, config, from_arrays(weights))
    check_table(sources, family.tensor_shapes(config), ignores(family.ignored))
    kept = Kept(device, dtype, precision, flag(mtp, "models.from_weights", "mtp"))
    return _build(family, config, sources, kept, tokenizer, None, account)


def check_dtype(dtype: object, where: str) -> None:
    if dtype is not None and not isinstance(dtype, str):
        raise refusal(dtype, where, "dtype", "a name, or None")


def check_precision(precision: object, where: str) -> None:
    if not isinstance(precision, str):
        raise refusal(precision, where, "precision", "a name")
    if precision not in PRECISIONS:
        raise ArgumentError(f"[{where}] precision: got {precision!r}, allowed {', '.join(PRECISIONS)}")


def family_of(config: ModelConfig) -> type[Model]:
    """The family that computes a parsed configuration."""
    return _family({"model_type": config.model_type}, "config")


def _family(raw: Raw, where: str) -> type[Model]:
    named = raw.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise FormatError(f"[models.load] {where}: architectures: got {named!r}, allowed a list of names")
    model_type = raw.get("model_type")
    for name in named:
        if name in _ARCHITECTURES:
            family = _of_text(raw, name)
            _check_type(family, model_type, name, where)
            return family
    if not named and isinstance(model_type, str) and model_type in _FAMILIES:
        return _FAMILIES[model_type]
    got = ", ".join(named) or f"model_type {model_type!r}"
    raise NotSupportedError(f"[models.load] {where}: architecture: got {got}, allowed {', '.join(architectures())}")


def _of_text(raw: Raw, name: str) -> type[Model]:
    """The family of an architecture; where several have it, the one that its text model names."""
    text = raw.get("text_config")
    named = _FAMILIES.get(str(text.get("model_type"))) if isinstance(text, Mapping) else None
    return named if named is not None and name in named.architectures else _ARCHITECTURES[name]


def _check_type(family: type[Model], model_type: object, name: str, where: str) -> None:
    """transformers goes by the type, and its model of that type may be another."""
    allowed = (family.family, family.family.removesuffix("_text"), *family.also, *filter(None, [family.outer]))
    if model_type is not None and model_type not in allowed:
        names = ", ".join(dict.fromkeys(allowed))
        raise NotSupportedError(
            f"[models.load] {where}: model_type: got {model_type!r}, allowed {names} with the architecture {name}"
        )


def _build(
    family: type[Model],
    config: ModelConfig,
    sources: Mapping[str, WeightSource],
    kept: Kept,
    tokenizer: Tokenizer | None,
    progress: bool | Progress | None,
    account: Account,
) -> Model:
    device, dtype, precision, mtp = kept
    if dtype is not None and dtype not in DTYPES:
        raise ArgumentError(f"[models.load] dtype: got {dtype!r}, allowed {', '.join(DTYPES)}")
    head = head_sources(family, config, sources) if mtp else None  # refused before a weight is read
    if not isinstance(device, Device):
        device = Device(device)
    if dtype is None:
        names = family.tensor_shapes(config)
        dtype = default_dtype({name: sources[name] for name in names})
    close = None
    if progress is True:
        progress, close = tqdm_progress()
    try:
        model = family(
            config,
            sources,
            device=device,
            dtype=dtype,
            tokenizer=tokenizer,
            progress=progress or None,
            precision=precision,
        )
        model.account = account
        if head is not None:
            model.mtp = build_head(model, head, progress or None)
        give_back()
        return model
    finally:
        if close is not None:
            close()
