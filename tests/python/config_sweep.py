"""Random small checkpoints with settings changed, computed by transformers and by kvtrie: equal, refused, or neutral.

A case changes keys of a family's ``config.json``. Its checkpoint is made by transformers' own class for that file,
with weights that depend on their names only, and saved; then both load the folder. What may come of it (``OUTCOMES``):

    equal     the same logits, other than the unchanged model's
    neutral   the same logits, which are those of the unchanged model
    refused   kvtrie raises an error that names a key of the case
    fails     transformers cannot build or run such a model, so there is nothing to be equal to
    wrong     anything else: other logits, an error that names no key of the case

``cases_of`` takes every field of the configuration's class, and the keys that transformers reads beyond them, to each
plausible other value: by its type, and those that transformers' code mentions.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import kvtrie as kv
from bounds import LOGITS_OF_SETTINGS, difference, note
from config_values import ABSENT, ALONE, OTHERS, SPECIAL
from rope_sweep import ropes
from sweep_families import FAMILIES, Family
from sweep_latent import LATENT_OTHERS

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

OUTCOMES = ("equal", "neutral", "refused", "fails", "wrong")
TOKENS = 40
Raw = dict[str, Any]


# ---- the values of each key ------------------------------------------------------------------------------------------


def fields_of(family: Family) -> dict[str, Any]:
    """The fields of its configuration's class, with their defaults."""
    kind = getattr(transformers, family.config)
    return {each.name: each.default for each in fields(kind) if not each.name.startswith("_")}


def _aliases(family: Family) -> list[str]:
    """Other names of its fields, which a file may have as well."""
    names: dict[str, str] = getattr(transformers, family.config).attribute_map
    return [name for pair in names.items() for name in pair if name in SPECIAL]


def _values(key: str, value: object) -> list[Any]:
    """``value``: what the base has, or the class's default."""
    if key in SPECIAL:
        return SPECIAL[key]
    if isinstance(value, bool):
        return [not value, value]
    if isinstance(value, int):
        return [1, 2 * value]
    if isinstance(value, float):
        return [value / 4, value * 4]
    raise KeyError(f"{key}: no values are known for a field of the kind {value!r}")


@dataclass(frozen=True)
class Case:
    family: str
    changes: dict[str, Any]

    def __str__(self) -> str:
        shown = {key: "ABSENT" if value is ABSENT else value for key, value in self.changes.items()}
        return f"{self.family} {shown}"

    def file(self) -> Raw:
        raw = {**FAMILIES[self.family].file, **self.changes}
        return copy.deepcopy({key: value for key, value in raw.items() if value is not ABSENT})


def cases_of(family: Family, seed: int = 0, more_ropes: int = 30) -> list[Case]:
    """One key changed in each; of RoPE, whose keys are merged, also ``more_ropes`` changes of several at random."""
    others = (*OTHERS, *(LATENT_OTHERS if "kv_lora_rank" in family.raw else ()))
    own = {**dict.fromkeys((*others, *_aliases(family))), **fields_of(family), **family.raw}
    cases = []
    for key, value in own.items():
        values = _values(key, value)
        if key in family.raw:
            values = [*values, ABSENT, *([] if any(each is None for each in values) else [None])]
        cases += [Case(family.name, {key: each}) for each in values]
        if key in ALONE:
            cases += [Case(family.name, {**ALONE[key], key: each}) for each in values]
    random = np.random.default_rng([seed, zlib.crc32(family.name.encode())])
    by_kind = family.name in ("gemma3_text", "gemma3n_text", "gemma4_text", "olmo3")
    cases += [Case(family.name, changes) for changes in ropes(random, more_ropes, by_kind, ABSENT)]
    return cases


def pairs_of(family: Family, count: int, seed: int = 0) -> Iterator[Case]:
    """``count`` of two changes at once."""
    cases = cases_of(family, seed, more_ropes=10)
    random = np.random.default_rng([seed, 1, zlib.crc32(family.name.encode())])
    while count:
        one, other = (cases[i] for i in random.choice(len(cases), 2, replace=False))
        if not one.changes.keys() & other.changes.keys():
            count -= 1
            yield Case(family.name, {**one.changes, **other.changes})


# ---- both sides ------------------------------------------------------------------------------------------------------


def randomise(model: Any) -> None:
    """Weights that depend on their names and shapes: a change of settings leaves those alone that it does not touch."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = np.random.default_rng(zlib.crc32(name.encode()))
            deviation = 0.25 if parameter.ndim > 1 else 0.5
            if name.endswith("conv1d.weight"):
                deviation = 0.5
            values = random.standard_normal(tuple(parameter.shape), np.float32) * deviation
            parameter.copy_(torch.from_numpy(np.abs(values) if name.endswith("A_log") else values))
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                random = np.random.default_rng(zlib.crc32(name.encode()))
                buffer.copy_(torch.from_numpy(random.standard_normal(tuple(buffer.shape), np.float32) * 0.25))


def tokens() -> Any:
    return np.random.default_rng(3).integers(2, 60, TOKENS)


def build(case: Case) -> Any:
    """transformers' model for the case's file."""
    family = FAMILIES[case.family]
    config = getattr(transformers, family.config).from_dict(case.file())
    model = getattr(transformers, family.architecture)._from_config(config, dtype=torch.float32).eval()
    randomise(model)
    return model


def wanted(model: Any) -> Any:
    """Its logits; the last rows also come one by one out of its cache, and have to be the same."""
    ids = torch.from_numpy(tokens())[None]
    with torch.no_grad():
        whole = _logits(model(ids, use_cache=False))
        begun = model(ids[:, :-2], use_cache=True, return_dict=True)
        at = [torch.tensor([[i]]) for i in (TOKENS - 2, TOKENS - 1)]  # which Bamba would count from 0 again
        last = [_logits(model(ids[:, i[0]], position_ids=i, cache=begun.cache)) for i in at]
    if difference(np.concatenate(last), whole[-2:]) > LOGITS_OF_SETTINGS.value:
        raise Contradicts("a decoded token has other logits than the same token in a whole text")
    return whole


class Contradicts(Exception):
    """transformers computes two things for one file."""


def _logits(output: Any) -> Any:
    return (output[0] if isinstance(output, tuple) else output.logits)[0].float().numpy()


def computed(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
        model = kv.models.load(folder, dtype="float32")
    with kv.PrefixCache(model.caches(capacity=64, dtype="float32", warm_up=False)).begin(tokens().tolist()) as session:
        return np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill()])


def save(model: Any, raw: Raw, folder: Path) -> None:
    """The checkpoint as transformers saves it, with ``raw`` as its configuration.

    transformers finds the names that a family's tensors have in files by ``model_type``, whatever ``raw`` says of it.
    """
    model.config.model_type = type(model.config).model_type
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))


@functools.cache
def unchanged(family: str) -> Any:
    """Logits of the model that no case changed, by transformers."""
    return wanted(build(Case(family, {})))


def outcome(case: Case) -> tuple[str, str]:
    """One of ``OUTCOMES``, and what was seen."""
    refusal = refused(case)
    if refusal is not None:
        named = _names(case.changes) & set(_words(refusal))
        return ("refused", refusal) if named else ("wrong", f"names no key: {refusal}")
    with tempfile.TemporaryDirectory() as name:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = build(case)
                save(model, case.file(), Path(name))
                want = wanted(model)
        except Contradicts as error:
            return "wrong", f"not refused, and transformers contradicts itself: {error}"
        except Exception as error:
            return "fails", f"{type(error).__name__}: {error}"
        return compare(case, Path(name), want)


def refused(case: Case) -> str | None:
    """What kvtrie says to the configuration alone."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
        (Path(name) / "config.json").write_text(json.dumps(case.file()))
        try:
            kv.models.describe(name)
        except (kv.errors.NotSupportedError, kv.errors.FormatError) as error:
            return str(error)
    return None


def compare(case: Case, folder: Path, want: Any) -> tuple[str, str]:
    try:
        got = computed(folder)
    except (kv.errors.NotSupportedError, kv.errors.FormatError) as error:
        return ("refused" if _names(case.changes) & set(_words(str(error))) else "wrong"), str(error)
    if not np.isfinite(want).all():
        return "fails", "logits that are not finite"
    apart, bound = difference(got, want), FAMILIES[case.family].bound
    if not apart <= bound.value:
        return "wrong", f"logits are {apart:.2g} off"
    note(apart, bound)
    base = unchanged(case.family)
    same = want.shape == base.shape and difference(want, base) <= bound.value
    return ("neutral" if same else "equal"), f"{apart:.2g}"


def _names(changes: Raw) -> set[str]:
    """The keys that a case changes, those inside of objects among them."""
    names = set(changes)
    for value in changes.values():
        if isinstance(value, dict):
            names |= _names(value)
    called = {"architectures": "architecture", "type": "rope_type"}  # what messages call them
    return names | {new for old, new in called.items() if old in names}


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
