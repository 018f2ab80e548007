"""Every key that a GGUF file may have, with each plausible value: what becomes of the file?

For each architecture, one key of a small file (of those that name the scaling of frequencies, up to five) says
something else. The file must load and be the model that gguf_oracle.py makes of it, or be refused by name, or be the
model it was. What else happens is "wrong", and there is none.

    ./dev run python tests/python/gguf_sweep.py --seed 1            all cases, and a table by architecture
    ./dev run python tests/python/gguf_sweep.py --seed 1 --count 300
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import itertools
import random
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

import kvtrie as kv
from bounds import LOGITS_OF_KINDS, difference
from gguf_oracle import meaning
from gguf_oracle_forms import FORMS as FORMS_OF_CHECKPOINTS
from gguf_oracle_forms import Given, meaning_of_form
from gguf_sweep_files import BASES, FORMS, TOKENS, Typed, architecture_of, base, save
from kvtrie.models.gguf import ARCHITECTURES
from kvtrie.models.gguf.keys import Keys
from kvtrie.models.gguf.reader import read_gguf
from kvtrie.models.gguf_settings import GENERAL, architecture_settings, file_settings
from kvtrie.models.settings import setting_of
from test_models import all_logits

Type = gguf.GGUFValueType
OUTCOMES = ("equal", "neutral", "refused", "contradicts", "wrong")

# Keys that llama.cpp has and this version of the gguf package does not.
LLAMA_CPP = (
    *("rope.scale_linear", "rope.scaling.alpha", "attention.recurrent_layers", "attention.rope_pattern"),
    *("attention.value_scale", "attention.key_length_mla_swa", "attention.value_length_mla_swa"),
    *("attention.kv_lora_rank_swa", "attention.indexer.block_size", "attention.indexer.types"),
    *("attention.output_group_count", "attention.output_lora_rank", "attention.compress_rope_freq_base"),
    *("attention.compress_ratios", "expert_latent_length", "deepstack_mapping", "hidden_activation", "num_loops"),
    *("skip_loop_final_norm", "hrm.h_cycles", "hyper_connection.count", "hash_layer_count", "ple.layers"),
    *("kda.safe_gate", "classifier.pooling_type", "target_layers", "norm_before_fc", "adapters.count"),
    *("attn_res.block_size", "activation.situ_beta", "mm.tokens_per_image", "vision.block_count"),
)
# Keys that are left out here, each with a reason.
LEFT_OUT = {
    "general.architecture": "another architecture is another file",
    "split.no": "parts of files have tests of their own, in test_gguf.py",
    "split.count": "parts of files have tests of their own, in test_gguf.py",
    "split.tensors.count": "parts of files have tests of their own, in test_gguf.py",
    "general.alignment": "where tensors begin is tried in test_gguf_damage.py: another value moves them",
}


class Case(NamedTuple):
    name: str  # of BASES or FORMS
    changes: dict[str, Typed | None]  # by key; None: the key is not there
    factors: bool = False  # whether the file has rope_freqs.weight

    def __str__(self) -> str:
        said = {key: "absent" if each is None else each[0] for key, each in self.changes.items()}
        return f"{said}{' beside rope_freqs.weight' if self.factors else ''}"


# ---- cases -----------------------------------------------------------------------------------------------------------


def keys_of(name: str) -> list[str]:
    """What the gguf package, llama.cpp and our lists name, under its full name, without what is left out."""
    architecture = architecture_of(name)
    written = [*_constants(gguf.constants.Keys), *GENERAL, *(f"{{arch}}.{key}" for key in LLAMA_CPP)]
    form = ARCHITECTURES.get(name, ARCHITECTURES[architecture])[1]
    written += [f"{{arch}}{key}" for key in architecture_settings(form)]
    full = (_filled(key, architecture) for key in written)
    return sorted({key for key in full if key not in LEFT_OUT and not key.startswith("tokenizer.")})


def _constants(container: Any) -> Iterator[str]:
    for name, value in vars(container).items():
        if inspect.isclass(value):
            yield from _constants(value)
        elif isinstance(value, str) and not name.startswith("_"):
            yield value


def _filled(key: str, architecture: str) -> str:
    for name, value in (("{arch}", architecture), ("{id}", "0"), ("{name}", "other"), ("{dense}", "dense_2")):
        key = key.replace(name, value)
    return key.replace("*", "x")


def plausible(key: str, given: Typed | None, layers: int) -> list[Typed | None]:
    """Other values of a key: near the one that the file has, and of each type."""
    found: list[Typed | None] = [] if given is None else [None]
    value, kind, inner = given or (None, None, None)
    if isinstance(value, bool):
        found.append((not value, kind, None))
    elif isinstance(value, int):
        near = {0, 1, 2, 3, value - 1, value + 1, 2 * value, value // 2}
        found += [(each, kind, None) for each in sorted(near - {value}) if each >= 0]
    elif isinstance(value, float):
        found += [(each, kind, None) for each in (0.0, 0.5, 1.0, value * 2, value / 2, -1.0)]
    elif isinstance(value, list):
        found += [(each, kind, inner) for each in (value[::-1], value[:-1], [value[0]] * len(value))]
    if given is None or not isinstance(value, (int, float)):
        found += [(each, Type.UINT32, None) for each in (0, 1, 2, 5, 50)] + [(-1, Type.INT32, None)]
        found += [(each, Type.FLOAT32, None) for each in (0.0, 0.5, 1.0, 4.0, 50.0)]
    found += [(each, Type.BOOL, None) for each in (True, False)]
    found += [(each, Type.STRING, None) for each in ("none", "model", "yarn", "other")]
    found += [([each] * layers, Type.ARRAY, Type.UINT32) for each in (0, 1)]
    found.append(([each % 2 for each in range(layers)], Type.ARRAY, Type.UINT32))
    found += [([0.0] * layers, Type.ARRAY, Type.FLOAT32), (["yes", "no"], Type.ARRAY, Type.STRING)]
    return found


# Of the keys that name the scaling of frequencies, and what stands beside them: each with each.
_ROPE: dict[str, tuple[Typed | None, ...]] = {
    "rope.scaling.type": (None, *((each, Type.STRING, None) for each in ("none", "linear", "yarn", "longrope"))),
    "rope.scaling.factor": (None, *((each, Type.FLOAT32, None) for each in (0.0, 1.0, 4.0))),
    "rope.scale_linear": (None, *((each, Type.FLOAT32, None) for each in (2.0, 4.0))),
    "rope.scaling.original_context_length": (None, (16, Type.UINT32, None)),
}
_BESIDE: dict[str, tuple[Typed | None, ...]] = {
    "rope.scaling.attn_factor": ((1.0, Type.FLOAT32, None), (1.2, Type.FLOAT32, None)),
    "rope.scaling.finetuned": ((True, Type.BOOL, None),),
    "rope.scaling.yarn_ext_factor": tuple((each, Type.FLOAT32, None) for each in (-1.0, 0.0, 0.5, 1.0)),
    "rope.scaling.yarn_attn_factor": tuple((each, Type.FLOAT32, None) for each in (1.0, 1.1386294, 0.8)),
    "rope.scaling.yarn_beta_fast": ((8.0, Type.FLOAT32, None), (64.0, Type.FLOAT32, None)),
    "rope.scaling.yarn_beta_slow": ((2.0, Type.FLOAT32, None), (0.5, Type.FLOAT32, None)),
    "rope.scaling.yarn_log_multiplier": ((0.0, Type.FLOAT32, None), (1.0, Type.FLOAT32, None)),
    "rope.freq_base": ((500_000.0, Type.FLOAT32, None),),
    "context_length": ((40, Type.UINT32, None),),
}


def cases(name: str) -> Iterator[Case]:
    """All of one file, always in the same order: of each key alone, then of those of frequencies."""
    values, layers = base(name).values, base(name).config.num_hidden_layers
    for key in keys_of(name):
        for value in plausible(key, values.get(key), layers):
            yield Case(name, {key: value})
    yield from _rope_cases(name)


def _rope_cases(name: str) -> Iterator[Case]:
    beside = [{}, *({key: value} for key, each in _BESIDE.items() for value in each)]
    for chosen in itertools.product(*_ROPE.values()):
        rope = {key: value for key, value in zip(_ROPE, chosen) if value is not None}
        for more in beside:
            changes = {f"{architecture_of(name)}.{key}": value for key, value in {**rope, **more}.items()}
            for factors in (False, True):
                yield Case(name, changes, factors)


# ---- what becomes of them --------------------------------------------------------------------------------------------


class Recording(dict[str, Any]):
    """A file's values, and which of them were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


# Looked up by the reader, before there is anything to record.
BY_THE_READER = {"general.alignment", "split.no", "split.count", "split.tensors.count"}


@contextlib.contextmanager
def recorded() -> Iterator[list[Recording]]:
    """What is asked of files that are read meanwhile."""
    found: list[Recording] = []
    module = kv.models.gguf

    def read(path: Path) -> Any:
        file = read_gguf(path)
        found.append(Recording(file.values))
        return type(file)(file.path, found[-1], file.tensors)

    before = module.read_gguf
    module.read_gguf = read
    try:
        yield found
    finally:
        module.read_gguf = before


def check_record(path: Path, values: Recording) -> None:
    """Every key that a list calls "read" was asked for, and no other."""
    asked = set(values.asked)
    keys = Keys(type(read_gguf(path))(path, dict(values), {}))
    settings = file_settings(keys.architecture, kv.models.gguf._form(keys)[1], "none", False)
    for key in dict(values).keys() - BY_THE_READER:
        setting = setting_of(key, settings)
        called = setting is not None and setting.fate == "read"
        assert called == (key in asked), f"{key}: {'called read' if called else 'asked for'}, but not both"


def written(case: Case, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Writes the file; its values as a reader has them, and its arrays."""
    found = base(case.name)
    values: dict[str, Typed | None] = {**found.values, **case.changes}
    arrays = dict(found.arrays)
    if case.factors:
        size = found.config.head_dim if not hasattr(found.config, "rotary_dims") else found.config.rotary_dims
        arrays["rope_freqs.weight"] = np.linspace(1, 3, size // 2).astype(np.float32)
    save(architecture_of(case.name), values, arrays, path)
    return dict(read_gguf(path).values), arrays


def judge(case: Case, path: Path) -> tuple[str, str]:
    """One of :data:`OUTCOMES`, and what was said of it."""
    values, arrays = written(case, path)
    wanted = _model_of(_meaning(case.name, values, arrays), case.name)
    with recorded() as records, warnings.catch_warnings():
        warnings.simplefilter("error", kv.errors.IgnoredWarning)
        try:
            parts = kv.models.gguf.read(path)
        except kv.Error as error:
            return _refusal(case, str(error))
        except kv.errors.IgnoredWarning as warning:
            return "wrong", f"a key that no list names: {warning}"
        check_record(path, records[0])
    own = base(case.name)
    if parts.config == own.config and not case.factors:
        got, outcome = own.logits, "neutral"
    else:
        outcome = "equal"
        try:
            got = all_logits(kv.models.load(path, dtype="float32"), TOKENS, len(TOKENS))
        except kv.errors.NotSupportedError as error:  # the text is too long for the model that this is
            return ("wrong" if wanted is not None else "refused"), str(error)
    if wanted is None:
        return "wrong", "must be refused, but loads"
    off = difference(got, wanted)
    return (outcome, "") if off <= LOGITS_OF_KINDS.value else ("wrong", f"logits are off by {off:.2g}")


def _refusal(case: Case, message: str) -> tuple[str, str]:
    """By one of the keys, or by another key or a tensor that says otherwise."""
    if any(key in message for key in case.changes) or (case.factors and "rope_freqs.weight" in message):
        return "refused", message
    others = [*base(case.name).values, "blk.", "token_embd.weight", "output.weight"]
    named = any(name in message for name in others)
    return ("contradicts", message) if named else ("wrong", f"refused, but not by name: {message}")


def _meaning(name: str, values: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any] | None:
    if name not in FORMS_OF_CHECKPOINTS:
        return meaning(name, values, arrays)
    return meaning_of_form(name, architecture_of(name), values, arrays, _given(name))


@functools.cache
def _given(name: str) -> Given:
    """The file as it was, as a reader has it."""
    with tempfile.TemporaryDirectory() as folder:
        values, _ = written(Case(name, {}), Path(folder) / "base.gguf")
    start = f"{architecture_of(name)}."
    return Given({key.removeprefix(start): each for key, each in values.items()}, base(name).raw)


def _model_of(raw: dict[str, Any] | None, name: str) -> Any:
    """Logits of the model that the oracle's configuration describes, with the same weights; None: there is no model."""
    if raw is None:
        return None
    text = f"{name} {sorted(raw.items())!r}"
    try:
        if text not in _MADE:
            model = kv.models.from_weights(raw, base(name).weights, dtype="float32")
            _MADE[text] = all_logits(model, TOKENS, len(TOKENS))
    except kv.Error:
        return None
    return _MADE[text]


_MADE: dict[str, Any] = {}


Table = dict[str, Counter[str]]


def play(chosen: list[Case], folder: Path) -> tuple[Table, list[str]]:
    """Outcomes by file, and what is wrong."""
    table: Table = defaultdict(Counter)
    wrong = []
    for case in chosen:
        outcome, said = judge(case, folder / "case.gguf")
        table[case.name][outcome] += 1
        if outcome == "wrong":
            wrong.append(f"{case.name} {case}: {said}")
    return table, wrong


def names() -> tuple[str, ...]:
    """Of all files that are changed."""
    return (*BASES, *FORMS)


def sample(seed: int, count: int, chosen: Iterable[str] = ()) -> list[Case]:
    """``count`` by chance, of each file (``chosen``, or all) as many, and as many of keys alone as of frequencies."""
    random_ = random.Random(seed)
    found: list[Case] = []
    files = [*(chosen or names())]
    random_.shuffle(files)
    for place, name in enumerate(files):
        own = count // len(files) + (place < count % len(files))
        every = [*cases(name)] if own else []
        ropes = [case for case in every if len(case.changes) != 1 or case.factors]
        alone = [case for case in every if len(case.changes) == 1 and not case.factors]
        found += random_.sample(alone, min(len(alone), own - own // 2))
        found += random_.sample(ropes, min(len(ropes), own // 2))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("names", nargs="*", help="of BASES and FORMS; all if none is named")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, wrong = play(sample(options.seed, options.count, options.names), Path(folder))
    print(f"| file | cases | {' | '.join(OUTCOMES)} |")
    for name, counts in sorted(table.items()):
        print(f"| {name} | {counts.total()} | {' | '.join(str(counts[each]) for each in OUTCOMES)} |")
    print("\n".join(wrong[:60]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
