"""An adapter beside its base: low-rank changes (LoRA) of linear layers, merged into their weights while they are read.

``adapter_config.json`` and ``adapter_model.safetensors`` are what peft saves: for each changed layer two matrices, A
[r, in] and B [out, r], whose product is added to the layer's weight, times a factor:

    weight + B @ A * alpha / r                   alpha / sqrt(r) with ``use_rslora``

The sum is made in float32 and kept so, whatever the base is stored in, which is what a model computes whose adapter is
not merged. A model's fingerprint is made of the sums. Anything that is not such a change is refused by name.

Source: peft 0.21, ``LoraModel._create_and_replace``, ``Linear.get_delta_weight``, ``get_pattern_key`` and
``check_target_module_exists``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import FormatError, NotSupportedError
from .config import ModelConfig
from .reader import Raw, Reader
from .settings import Account, Settings, neutral, read, settle
from .stored import EMBEDDING, HEAD, same_numbers
from .weights import ADAPTER, STORED, Array, WeightSource, open_file, read_json, text_name, to_float32

CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_KEPT = (HEAD, EMBEDDING)  # which may be one
_MOST = 2**20
_OFF: tuple[object, ...] = (False, [], {}, "")  # what switches a feature of peft off, beside null

_ABOUT = neutral("says something about the file, not about what is computed")
_TRAINING = neutral("seen in training only")
SETTINGS: Settings = {
    "peft_type": read("LORA; others are refused"),
    "r": read("the rank, where rank_pattern names no other"),
    "lora_alpha": read("the factor, where alpha_pattern names no other"),
    "use_rslora": read("whether the factor is alpha / sqrt(r) instead of alpha / r"),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), read("others by name of layer, or by an expression of it")),
    "target_modules": read("which layers change: has to fit the tensors that are there"),
    "exclude_modules": read("layers that do not, though target_modules names them"),
    "bias": neutral("biases that an adapter changes are not merged", "none"),
    "init_lora_weights": neutral(
        "how training began; ways that change the base (PiSSA, OLoRA, LoftQ, ...) are refused",
        *(True, False, "gaussian", "orthogonal", "eva"),
    ),
    "task_type": neutral("tasks other than text have other heads", "CAUSAL_LM"),
    "fan_in_fan_out": neutral("peft switches it off for linear layers"),
    "lora_dropout": _TRAINING,
    "inference_mode": _TRAINING,
    "eva_config": _TRAINING,
    "runtime_config": _TRAINING,
    **dict.fromkeys(("qalora_group_size", "megatron_core"), neutral("read by features that are refused")),
    "base_model_name_or_path": neutral("the base is what stands beside the adapter"),
    **dict.fromkeys(("revision", "auto_mapping", "peft_version", "base_model_class", "parent_library"), _ABOUT),
    "*": neutral("only low-rank changes of linear layers are merged", *_OFF),
}

Config = TypeVar("Config", bound=ModelConfig)


class Change(NamedTuple):
    """Of one layer: A [r, in], B [out, r], as they are stored."""

    a: WeightSource
    b: WeightSource


def without_base(folder: Path) -> FormatError | None:
    """The message for a folder that holds an adapter and no model; None for any other."""
    if (folder / "config.json").exists() or not (folder / CONFIG).exists():
        return None
    raw = read_json(folder / CONFIG)
    base, kind = raw.get("base_model_name_or_path"), raw.get("peft_type", "unknown")
    return FormatError(
        f"[models.load] {folder}: got an adapter alone ({CONFIG}, peft_type {kind}), allowed a folder with its base "
        f"beside it: copy config.json, the weights and the tokenizer of {base!r} there"
    )


def settle_adapter(folder: Path) -> Account:
    """The account of the keys of the folder's adapter; {} where it has none. Raises ``kv.errors.NotSupportedError``
    naming one."""
    path = folder / CONFIG
    if not path.exists():
        return {}
    raw = read_json(path)
    if raw.get("peft_type") != "LORA":
        raise NotSupportedError(f"[models.load] {path}: peft_type: got {raw.get('peft_type')!r}, allowed 'LORA'")
    return {CONFIG: settle(raw, SETTINGS, str(path))}


class Adapter:
    """A folder's: its changes, by the layers' names in transformers, and what it holds of the base."""

    def __init__(self, folder: Path) -> None:
        self._raw, self._where = read_json(folder / CONFIG), str(folder / CONFIG)
        self._changes, self._copies = _stored(folder)
        _check_targets(self._changes, self._raw, self._where)

    def over_stored(
        self, stored: Mapping[str, WeightSource], name_in_transformers: Callable[[str], str]
    ) -> dict[str, WeightSource]:
        """What a file stores, with the changes of layers that transformers has as they are stored. A family may then
        rename them, or take them apart."""
        found, names = dict(stored), {name_in_transformers(name): name for name in stored}
        for module in [*self._changes]:
            name = names.get(f"{text_name(module)}.weight")
            if name is not None and len(stored[name].shape) == 2 and f"{text_name(module)}.weight" not in _KEPT:
                found[name] = self._merge(found[name], module)
        return found

    def over(self, config: Config, sources: Mapping[str, WeightSource]) -> tuple[Config, dict[str, WeightSource]]:
        """``config`` and ``sources``, by the names that the model uses, with all other changes. One of a tied head
        makes a head of its own."""
        found = dict(sources)
        _check_copies(self._copies, sources)
        for module, change in [*self._changes.items()]:
            name = f"{text_name(module)}.weight"
            if name == HEAD and config.tie_word_embeddings:
                config = dataclasses.replace(config, tie_word_embeddings=False)
                found[HEAD] = dataclasses.replace(found[EMBEDDING], name=HEAD)
            if name not in found or len(found[name].shape) != 2 or name == EMBEDDING:
                raise NotSupportedError(
                    f"[models.load] {change.a.origin}: {module}: got a change of what is no linear layer of the base"
                )
            found[name] = self._merge(found[name], module)
        return config, found

    def _merge(self, base: WeightSource, module: str) -> WeightSource:
        change = self._changes.pop(module)
        return _merged(base, change, _scale(module, self._raw, change, self._where))


def adapter_of(folder: Path) -> Adapter | None:
    """Raises ``kv.errors.NotSupportedError`` for what cannot be merged, ``kv.errors.FormatError`` for an adapter that
    does not fit the base, as do its methods."""
    return Adapter(folder) if (folder / CONFIG).exists() else None


def _stored(folder: Path) -> tuple[dict[str, Change], dict[str, WeightSource]]:
    """Changes by their layer's name, as in the adapter; and what it holds of the base, by the tensor's name."""
    if not (folder / ADAPTER).exists():
        raise FormatError(f"[models.load] {folder / ADAPTER}: the file is missing, {CONFIG} is there")
    halves: dict[str, dict[str, WeightSource]] = {}
    copies: dict[str, WeightSource] = {}
    for name, source in open_file(folder / ADAPTER).items():
        match = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight", name)
        if match is None and "lora_" not in name and name.startswith(_PREFIX):
            copies[text_name(name.removeprefix(_PREFIX).replace(".base_layer.", "."))] = source
            continue
        if match is None or len(source.shape) != 2:
            raise NotSupportedError(
                f"[models.load] {source.origin}: got {name} {list(source.shape)}, allowed lora_A and lora_B of linear "
                "layers"
            )
        if source.dtype not in STORED:
            raise NotSupportedError(
                f"[models.load] {source.origin}: {name}: got {source.dtype}, allowed {', '.join(STORED)}"
            )
        halves.setdefault(match[1], {})[match[2]] = source
    for module, each in halves.items():
        if each.keys() != {"A", "B"}:
            raise FormatError(f"[models.load] {folder / ADAPTER}: {module}: got lora_{''.join(each)} alone")
    return {module: Change(each["A"], each["B"]) for module, each in halves.items()}, copies


def _check_copies(copies: Mapping[str, WeightSource], sources: Mapping[str, WeightSource]) -> None:
    """peft also saves the embedding and the head, where a vocabulary grew or the head changes."""
    for name, source in copies.items():
        base = sources.get(EMBEDDING if name == HEAD and HEAD not in sources else name)
        if base is None or not same_numbers(source, base):
            raise NotSupportedError(
                f"[models.load] {source.origin}: got {name} with other numbers than the base, allowed changes of "
                "linear layers"
            )


def _check_targets(changes: Mapping[str, Change], raw: Raw, where: str) -> None:
    for module in changes:
        if not _targets(module, raw, where):
            raise NotSupportedError(
                f"[models.load] {where}: target_modules: got {raw.get('target_modules')!r}, but the file changes "
                f"{module}, which peft would ignore"
            )


def _targets(module: str, raw: Raw, where: str) -> bool:
    named, but = raw.get("target_modules"), raw.get("exclude_modules") or []
    if isinstance(named, str) and named.lower() == "all-linear":
        return not _names(but, module, where)
    return _names(named, module, where) and not _names(but, module, where)


def _names(patterns: object, module: str, where: str) -> bool:
    """Whether a regular expression is ``module``, or one of a list ends it."""
    if isinstance(patterns, str):
        return _matches(patterns, module, where)
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(each, str) for each in patterns):
        raise FormatError(f"[models.load] {where}: target_modules: got {patterns!r}, allowed names, or an expression")
    return any(module == each or module.endswith(f".{each}") for each in patterns)


def _matches(pattern: str, module: str, where: str) -> bool:
    try:
        return re.fullmatch(pattern, module) is not None
    except re.error as error:
        raise FormatError(f"[models.load] {where}: got the expression {pattern!r}: {error}") from error


def _scale(module: str, raw: Raw, change: Change, where: str) -> float:
    reader = Reader(raw, where)
    rank = _of_pattern(module, raw, "rank_pattern", where, reader.within("r", 1, _MOST))
    alpha = _of_pattern(module, raw, "alpha_pattern", where, reader.number("lora_alpha"))
    if change.a.shape[0] != rank or change.b.shape[1] != rank:
        got = f"A {list(change.a.shape)} and B {list(change.b.shape)}"
        raise FormatError(f"[models.load] {change.a.origin}: {module}: got {got}, allowed a rank of {rank:g}")
    return alpha / (math.sqrt(rank) if reader.flag("use_rslora") else rank)


def _of_pattern(module: str, raw: Raw, key: str, where: str, default: float) -> float:
    """The number of the first pattern that is the module's name or its end."""
    patterns = raw.get(key) or {}
    if not isinstance(patterns, Mapping):
        raise FormatError(f"[models.load] {where}: {key}: got {patterns!r}, allowed an object")
    for pattern in patterns:
        if _matches(rf"(.*\.)?({pattern})", module, where):
            return Reader(patterns, f"{where}: {key}").positive(pattern)
    return default


def _merged(base: WeightSource, change: Change, scale: float) -> WeightSource:
    if base.shape != (change.b.shape[0], change.a.shape[1]):
        raise FormatError(
            f"[models.load] {change.a.origin}: {base.name}: got a change of shape "
            f"{[change.b.shape[0], change.a.shape[1]]}, allowed {list(base.shape)}"
        )

    def rows(begin: int, end: int) -> Array:
        a, b = to_float32(change.a.read(), change.a.dtype), to_float32(change.b.rows(begin, end), change.b.dtype)
        return np.asarray(to_float32(base.rows(begin, end), base.dtype) + (b @ a) * np.float32(scale), np.float32)

    return WeightSource(base.name, "F32", base.shape, 4 * math.prod(base.shape), base.origin, rows)
