"""Fuzz targets in Python: what the package parses that a stranger may have written, and arrays of every kind.

    python_targets.py --list
    python_targets.py NAME FILE ...                  plays inputs; what it may not do is raised
    python_targets.py NAME [-OPTION=N ...] FOLDER ...  libFuzzer's options: finds inputs, keeps them in the first folder

A target takes any bytes. It raises what no caller may meet: another error than those of the package, one that does not
say where, a secret in a message, more time or memory than is promised. ``atheris`` (libFuzzer for Python) guides it by
what it has reached in the package and in jinja2; where there is none, changes are made at random and nothing is kept.

Each process has a limit on its memory, and one input on its seconds (-timeout). tests/python/test_fuzz_corpus.py plays
the corpora.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

_guided = atheris is not None and __name__ == "__main__" and any(each.startswith("-max") for each in sys.argv)
with atheris.instrument_imports(include=["kvtrie", "jinja2", "array_inputs"]) if _guided else contextlib.nullcontext():
    import array_inputs
    import kvtrie as kv
    import kvtrie._arrays
    import kvtrie.models.chat_template as chat_template
    from kvtrie.models import gguf
    from kvtrie.models.gguf.reader import read_gguf
    from kvtrie.models.tokenizer import Tokenizer
    from kvtrie.replay.token_trace import read_tokens
    from kvtrie.replay.traces import read_mooncake
    from kvtrie.stores import RedisStore, open_store

MEMORY = 24 << 30  # bytes of addresses, most of which drivers and libraries only reserve
_folder = tempfile.TemporaryDirectory(prefix="kvtrie-fuzz-")
FOLDER = Path(_folder.name)
TYPED = (kv.errors.FormatError, kv.errors.NotSupportedError, kv.errors.ArgumentError, kv.errors.ArgumentTypeError)


@contextlib.contextmanager
def typed_errors(*begin: str) -> Iterator[None]:
    """Errors of the package that say where may leave; others, and other texts, are findings."""
    try:
        yield
    except TYPED as error:
        if not str(error).startswith(begin):
            raise AssertionError(f"an error that does not say where: {error}") from error


STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        7,
        1.5,
        -0.0,
        1e308,
        2**31 - 1,
        2**31,
        2**53,
        2**63,
        2**64,
        10**400,
        float("nan"),
        float("inf"),
    ),
    *("", "x", "16", "\ud800", [], [1], [-1], ["x"], [[]], [10**400], {}, {"a": {}}, {"seed": 1, "n": 3}, {"n": 3}),
)


class Choices:
    """Choices that bytes make, one each; the first of all once they are used up."""

    def __init__(self, data: bytes) -> None:
        self.left = list(data[::-1])

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.left.pop() % len(values)] if self.left else values[0]


def split(data: bytes, count: int) -> tuple[int, bytes]:
    """A number below ``count``, of the first byte, and the rest."""
    return (data[0] % count if data else 0), data[1:]


# ---- files of models -------------------------------------------------------------------------------------------------


def python_gguf(data: bytes) -> None:
    """A GGUF file, whole, or behind a right beginning so that its keys are reached."""
    framed, rest = split(data, 2)
    path = FOLDER / "model.gguf"
    path.write_bytes(rest if not framed else b"GGUF\x03\0\0\0" + rest)
    with typed_errors("[models"):
        found = read_gguf(path)
        for tensor in found.tensors.values():
            assert 0 <= tensor.begin <= tensor.begin + tensor.nbytes <= len(rest) + 8, tensor
    with typed_errors("[models"):
        gguf.read(path)


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
_KEYS = [
    *_CONFIG,
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "quantization_config",
    "eos_token_id",
    "model_type",
    "text_config",
    "attention_bias",
    "partial_rotary_factor",
    "num_experts",
    "bos_token_id",
]
_SHAPES = {
    "model.embed_tokens.weight": [8, 16],
    "model.norm.weight": [16],
    "model.layers.0.input_layernorm.weight": [16],
    "model.layers.0.post_attention_layernorm.weight": [16],
    "model.layers.0.self_attn.q_proj.weight": [16, 16],
    "model.layers.0.self_attn.k_proj.weight": [8, 16],
    "model.layers.0.self_attn.v_proj.weight": [8, 16],
    "model.layers.0.self_attn.o_proj.weight": [16, 16],
    "model.layers.0.mlp.gate_proj.weight": [16, 16],
    "model.layers.0.mlp.up_proj.weight": [16, 16],
    "model.layers.0.mlp.down_proj.weight": [16, 16],
}
_TOKENIZER = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "chat_template.jinja",
)


def safetensors_header() -> tuple[bytes, int]:
    """The JSON of the tiny checkpoint's weights, and the bytes of its numbers."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in _SHAPES.items():
        size = 4
        for each in shape:
            size *= each
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return json.dumps(header).encode(), at


def changed_json(value: dict[str, Any], keys: Sequence[str], rest: bytes) -> bytes:
    """With some keys set to strange values."""
    choices = Choices(rest)
    changed = dict(value)
    while choices.left:
        changed[choices.pick(keys)] = choices.pick(STRANGE)
    return json.dumps(changed).encode()


def changed_header(rest: bytes) -> bytes:
    """The weights' JSON with some fields of tensors changed."""
    choices = Choices(rest)
    header = json.loads(safetensors_header()[0])
    while choices.left:
        tensor = header[choices.pick(list(header))]
        numbers = (
            "F16",
            "BF16",
            "F32",
            "I64",
            [0, 0],
            [0, 64],
            [1, 65],
            [64, 0],
            [2**63, 2**64],
            [16],
            [4, 4],
            [2**40] * 3,
        )
        tensor[choices.pick(["shape", "dtype", "data_offsets"])] = choices.pick((*numbers, *STRANGE))
    return json.dumps(header).encode()


def python_checkpoint(data: bytes) -> None:
    """A checkpoint folder in which one file is anybody's; of the weights, the JSON behind a right length.

    Or its configuration, its settings, or the weights' JSON is right but for some values.
    """
    which, rest = split(data, len(_FILES) + 4)
    if which == len(_FILES) + 1:
        which, rest = 0, changed_json(_CONFIG, _KEYS, rest)
    elif which == len(_FILES) + 2:
        which, rest = 4, changed_json({}, ["eos_token_id", "temperature", "top_k", "top_p"], rest)
    elif which == len(_FILES) + 3:
        which, rest = len(_FILES), changed_header(rest)
    folder = FOLDER / "checkpoint"
    folder.mkdir(exist_ok=True)
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    header, size = safetensors_header()
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    if which < len(_FILES):
        (folder / _FILES[which]).write_bytes(rest)
    else:
        (folder / "model.safetensors").write_bytes(len(rest).to_bytes(8, "little") + rest + bytes(size))
    with typed_errors("[models", "[tokenizer"):
        kv.models._load_folder(folder, kv.models.Kept(None, None, "auto", False), None)


def _no_device(family: Any, config: Any, sources: Any, device: Any, dtype: Any, tokenizer: Any, *rest: Any) -> None:
    """In place of a model: every weight that it would read, and its tokenizer used."""
    for name in family.tensor_shapes(config):
        sources[name].read()
    use(tokenizer)


def use(tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        return
    ids = tokenizer.encode("ab <s> a\u00e9")
    tokenizer.decode(ids)
    stream = tokenizer.stream()
    "".join(map(stream.feed, ids)) + stream.finish()
    if tokenizer.chat_template is not None:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)


# ---- templates, addresses, traces -----------------------------------------------------------------------------------

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "a <|end|> b", "tools": [{"name": "f", "arguments": {"x": 1}}]},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]},
    {"role": "user", "content": [{"type": "text", "text": "c"}]},
]
TEMPLATE_SECONDS = 120  # of this processor's time; a template ends in seconds, also where that is ten times slower


def python_chat_template(data: bytes) -> None:
    """A template: text, or a refusal; within the budget's time and memory whatever it does."""
    source = data.decode("utf-8", "replace")
    start = time.process_time()
    with typed_errors("[tokenizer]"):
        template = chat_template.ChatTemplate(source)
        text = template.render({"messages": MESSAGES, "bos_token": "<s>", "add_generation_prompt": True})
        assert len(text) <= len(source) + 2 * chat_template.BUDGET, len(text)
    took = time.process_time() - start
    assert took < TEMPLATE_SECONDS, f"{took:.0f} s of processor time"


def python_redis_url(data: bytes) -> None:
    """The address of a store: refused, or a store; its password is in no text."""
    secret = "hush-hush"
    with_secret, rest = split(data, 3)
    text = rest.decode("utf-8", "surrogateescape")
    url = (text, f"redis://u:{secret}@{text}", f"redis://:{secret}@host:1/{text}")[with_secret]
    try:
        store = open_store(url)
    except TYPED as error:
        shown = str(error)
        assert shown.startswith("[RedisStore]"), shown
    else:
        assert isinstance(store, RedisStore)
        shown = f"{store!r} {store.name}"
        store.close()
    assert secret not in shown, shown


def made_tokens(rest: bytes) -> bytes:
    """Lines of a token trace: right ones, with strange values among them."""
    choices = Choices(rest)
    good = (0, 1, 3, [4, 8], {"seed": 1, "n": 5}, {"seed": 2, "n": 2, "from": 7})
    lines = []
    while choices.left and len(lines) < 12:
        ops = [
            [
                choices.pick(["append", "generate", "rollback", "branch", "end", "x"]),
                choices.pick((*good * 6, *STRANGE)),
            ]
            for _ in range(choices.pick(range(4)))
        ]
        line = {
            "t": len(lines),
            "session": choices.pick("aabc"),
            "ops": [op[:1] if op[0] == "end" else op for op in ops],
        }
        if choices.pick([False, True]):
            line["parent"] = choices.pick("abc")
        if choices.pick([False] * 5 + [True]):
            line[choices.pick(["t", "session", "parent", "namespace", "ops", "z"])] = choices.pick(STRANGE)
        lines.append(json.dumps(line))
    return "\n".join(lines).encode()


def made_blocks(rest: bytes) -> bytes:
    """Lines of a Mooncake trace, the same way."""
    choices = Choices(rest)
    lines = []
    while choices.left and len(lines) < 12:
        blocks = 1 + choices.pick(range(4))
        line = {
            "timestamp": 100 * len(lines),
            "input_length": 16 * blocks - choices.pick([0, 1, 15]),
            "output_length": choices.pick([0, 7]),
            "hash_ids": [choices.pick((*range(16), *STRANGE)) for _ in range(blocks)],
        }
        if choices.pick([False] * 5 + [True]):
            line[choices.pick(sorted(line))] = choices.pick(STRANGE)
        lines.append(json.dumps(line))
    return "\n".join(lines).encode()


def python_trace(data: bytes) -> None:
    """A trace of either format, read as it is replayed."""
    which, rest = split(data, 5)
    path = FOLDER / "trace.jsonl"
    path.write_bytes(rest if which < 3 else made_tokens(rest) if which == 3 else made_blocks(rest))
    with typed_errors("[trace]", "[read_"):
        trace = read_tokens(path) if which in (0, 3) else read_mooncake(path, 16, expand=which == 2)
        before = 0.0
        for request in itertools.islice(trace, 20):
            assert request.time >= before, request.time
            assert request.tokens.dtype == request.output.dtype == "int32"
            assert request.tokens.size == 0 or request.tokens.min() >= 0
            before = request.time


def python_arrays(data: bytes) -> None:
    """Tokens, K, V and queries in arrays of every dtype, stride and byte order (tests/python/array_inputs.py)."""
    array_inputs.play(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        python_arrays,
        python_chat_template,
        python_checkpoint,
        python_gguf,
        python_redis_url,
        python_trace,
    )
}


def prepare() -> None:
    """Once, before targets play."""
    logging.getLogger("gguf").setLevel(logging.ERROR)
    kv.models._build = _no_device  # type: ignore[assignment]


# ---- playing ---------------------------------------------------------------------------------------------------------


def unguided(target: Callable[[bytes], None], options: dict[str, str], folders: list[Path]) -> None:
    """Random changes of what is in the folders, for as long as was asked for; says what libFuzzer says at the end."""
    seed = int(options.get("-seed", 1))
    dice = random.Random(seed)
    known = [path.read_bytes() for folder in folders for path in sorted(folder.iterdir()) if path.is_file()] or [b""]
    end = time.monotonic() + float(options.get("-max_total_time", 30))
    runs = 0
    while time.monotonic() < end:
        data = bytearray(dice.choice(known))
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(data) + 1)
            data[at : at + dice.randrange(5)] = dice.choice(
                [dice.randbytes(dice.randrange(5)), dice.choice(known)[:40]]
            )
        runs += 1
        try:
            target(bytes(data[:4096]))
        except BaseException:
            path = Path(f"{options.get('-artifact_prefix', '')}crash-{seed}-{runs}")
            path.write_bytes(data[:4096])
            print(f"Test unit written to {path}", file=sys.stderr)
            raise
    print(f"stat::number_of_executed_units: {runs}\nnot guided: no atheris here", file=sys.stderr)


def main(arguments: list[str]) -> None:
    if arguments == ["--list"]:
        print("\n".join(TARGETS))
        return
    name, *rest = arguments
    prepare()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    target = TARGETS[name]
    flags = [each for each in rest if each.startswith("-")]
    paths = [Path(each) for each in rest if not each.startswith("-")]
    if not flags:
        for path in paths:
            print(f"{name}: {path}")
            target(path.read_bytes())
    elif atheris is None:
        unguided(target, dict(each.split("=", 1) for each in flags), paths)
    else:
        flags = [each for each in flags if not each.startswith("-malloc_limit_mb")]
        atheris.Setup([sys.argv[0], *flags, *map(str, paths)], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
