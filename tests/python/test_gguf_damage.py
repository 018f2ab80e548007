"""GGUF files that are truncated, hostile or not supported: ``FormatError``s that name the file, the key and what is
allowed, at once and in little memory."""

from __future__ import annotations

import resource
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_mutations
import kvtrie as kv
from circles import CIRCLE
from gguf_files import Kind, checkpoint, rewrite, write
from kvtrie.models.gguf.reader import read_gguf

MUTATIONS = {"test": 300, "ci": 3000, "soak": 30_000}[CIRCLE]
MAGIC = b"GGUF"
U32, STRING, ARRAY = 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def header(*keys: bytes, tensors: int = 0, count: int | None = None, version: int = 3) -> bytes:
    count = len(keys) if count is None else count
    return MAGIC + struct.pack("<IQQ", version, tensors, count) + b"".join(keys)


def tensor(name: bytes, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ARCH = key(b"general.architecture", STRING, text(b"llama"))
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the magic number: takes 4 bytes"),
    "another kind of file": (b"\x80\x02}q\x00" * 9, "allowed one that begins with GGUF"),
    "version 1": (header(version=1), "version: got 1, allowed 2 or 3, little-endian"),
    "big-endian": (MAGIC + struct.pack(">IQQ", 3, 0, 0), "version: got 3, big-endian, allowed 2 or 3"),
    "2**64 - 1 keys": (header(count=2**64 - 1), "the number of keys: got 18446744073709551615, allowed up to 0"),
    "2**63 tensors": (header(tensors=2**63), "the number of tensors: got 9223372036854775808"),
    "a key of 2**62 bytes": (
        header(struct.pack("<Q", 2**62) + bytes(64), count=1),
        "a key: length: got 46116860184273",
    ),
    "a key longer than the file": (header(struct.pack("<Q", 99), count=1), "the number of keys"),
    "an empty key": (header(key(b"", U32, b"\0" * 4)), "a key is empty"),
    "a key that is no UTF-8": (header(key(b"\xff\xfe", U32, b"\0" * 4)), "a key: not UTF-8"),
    "a value that is no UTF-8": (header(key(b"a.b", STRING, text(b"\xc3("))), "a.b: not UTF-8"),
    "a key twice": (header(ARCH, ARCH), "key 'general.architecture' is there twice"),
    "a type that is none": (header(key(b"a.b", 13, b"\0" * 8)), "a.b: type: got number 13, allowed 0 to 12"),
    "a list of 2**60 numbers": (
        header(key(b"a.b", ARRAY, struct.pack("<IQ", U32, 2**60))),
        "a.b: got 1152921504606846976, allowed up to 0",
    ),
    "a list of 2**61 strings": (
        header(key(b"a.b", ARRAY, struct.pack("<IQ", STRING, 2**61))),
        "a.b: got 230584300921369",
    ),
    "a list of lists": (
        header(key(b"a.b", ARRAY, struct.pack("<IQ", ARRAY, 1))),
        "a.b: type of the array: got number 9",
    ),
    "no architecture": (header(), "key 'general.architecture' is missing"),
    "an architecture that is a number": (header(key(b"general.architecture", U32, b"\0" * 4)), "allowed a string"),
    "another architecture": (
        header(key(b"general.architecture", STRING, text(b"mamba"))),
        "general.architecture: got 'mamba', allowed deepseek2, deepseek32, dots1, ernie4_5, ernie4_5-moe, exaone4, ",
    ),
    "alignment 0": (
        header(key(b"general.alignment", U32, struct.pack("<I", 0))),
        "alignment: got 0, allowed a power of two",
    ),
    "alignment 24": (header(key(b"general.alignment", U32, struct.pack("<I", 24))), "general.alignment: got 24"),
    "no dimensions": (
        header(ARCH, tensor(b"t", []) + bytes(64), tensors=1, count=1),
        "dimensions: got 0, allowed 1 to 4",
    ),
    "five dimensions": (header(ARCH, tensor(b"t", [1] * 5), tensors=1, count=1), "dimensions: got 5"),
    "a dimension of 0": (header(ARCH, tensor(b"t", [4, 0]), tensors=1, count=1), "t: shape: got [0, 4]"),
    "more elements than 2**64": (
        header(ARCH, tensor(b"t", [2**40, 2**40]) + bytes(64), tensors=1, count=1),
        "t: F32 [1099511627776, 1099511627776] ends at byte",
    ),
    "a negative dimension": (
        header(ARCH, tensor(b"t", [2**64 - 1]), tensors=1, count=1),
        "t: shape: got [184467440737",
    ),
    "a type of tensor that is none": (
        header(ARCH, tensor(b"t", [4], 99), tensors=1, count=1),
        "t: type: got number 99",
    ),
    "half a block": (header(ARCH, tensor(b"t", [33], 8), tensors=1, count=1), "multiples of 32 in the last axis"),
    "an offset between": (
        header(ARCH, tensor(b"t", [4], 0, 7), tensors=1, count=1),
        "t: offset: got 7, allowed multiples",
    ),
    "an offset past the end": (header(ARCH, tensor(b"t", [4], 0, 2**40), tensors=1, count=1), "ends at byte 10995116"),
    "an offset that wraps": (
        header(ARCH, tensor(b"t", [4], 0, 2**64 - 32), tensors=1, count=1),
        "ends at byte 18446744",
    ),
    "a tensor twice": (
        header(ARCH, tensor(b"t", [4]) + tensor(b"t", [4], 0, 32) + bytes(128), tensors=2, count=1),
        "tensor 't' is there twice",
    ),
    "tensors on top of each other": (
        header(ARCH, tensor(b"t", [9]) + tensor(b"u", [4], 0, 32) + bytes(128), tensors=2, count=1),
        "u: begins at byte",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name: str, tmp_path: Path) -> None:
    data, message = HOSTILE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(kv.errors.FormatError) as error:
        kv.models.load(path)
    assert message in str(error.value) and str(error.value).startswith(f"[models.load] {path}: ")


def test_every_length_of_a_file(tmp_path: Path) -> None:
    """Cut anywhere in the header or in the numbers: an error."""
    whole = gguf_mutations.samples(tmp_path)[1]
    path = tmp_path / "cut.gguf"
    begin = min(each.begin for each in read_gguf(tmp_path / "llama-gqa-tied.gguf").tensors.values())
    for length in [*range(0, begin, 7), *range(begin, len(whole), 4999), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(kv.errors.FormatError, match=r"cut\.gguf"):
            kv.models.load(path)


Change = Any
WRONG: dict[str, tuple[Change, str]] = {
    "no tensor": (
        lambda _, t: t.pop("blk.1.ffn_up.weight"),
        "tensor 'blk.1.ffn_up.weight' is missing, expected shape [96, 64]",
    ),
    "one too many": (
        lambda _, t: t.update({"blk.0.other.weight": (np.zeros(4, np.float32), Kind.F32)}),
        "1 tensors the model has no use for: blk.0.other.weight",
    ),
    "another shape": (
        lambda _, t: t.update({"blk.0.ffn_up.weight": (np.zeros((9, 64), np.float32), Kind.F32)}),
        "blk.0.ffn_up.weight: got shape [9, 64], expected [96, 64]",
    ),
    "a type that nobody dequantises": (
        lambda _, t: t.update({"blk.0.ffn_up.weight": (np.zeros((96, 64), np.int32), Kind.I32)}),
        "blk.0.ffn_up.weight: type: got I32, allowed F32, F16, Q4_0",
    ),
    "a norm of another type": (
        lambda _, t: t.update({"output_norm.weight": (np.zeros(64, np.int32), Kind.I32)}),
        "output_norm.weight: type: got I32, allowed F32, F16, BF16",
    ),
    "no embedding": (lambda _, t: t.pop("token_embd.weight"), "tensor 'token_embd.weight' is missing"),
    "key missing": (lambda v, _: v.pop("llama.embedding_length"), "key 'llama.embedding_length' is missing"),
    "too many blocks": (
        lambda v, _: v.update({"llama.block_count": (v["llama.block_count"][0], 3)}),
        "got 3, allowed an integer from 1 to 2",
    ),
    "another type of key": (
        lambda v, _: v.update({"llama.block_count": ([gguf.GGUFValueType.STRING], "two")}),
        "llama.block_count: got 'two', allowed an integer",
    ),
    "eps that is no number": (
        lambda v, _: v.update({"llama.attention.layer_norm_rms_epsilon": ([gguf.GGUFValueType.FLOAT32], float("nan"))}),
        "llama.attention.layer_norm_rms_epsilon: got nan, allowed a positive finite number",
    ),
    "rope of another kind": (
        lambda v, _: v.update({"llama.rope.scaling.type": ([gguf.GGUFValueType.STRING], "longrope")}),
        "llama.rope.scaling.type: got 'longrope', allowed none, linear, yarn",
    ),
    "frequencies that are 0": (
        lambda _, t: t.update({"rope_freqs.weight": (np.zeros(8, np.float32), Kind.F32)}),
        "rope_freqs.weight: allowed positive finite numbers",
    ),
    "partial rotation": (
        lambda v, _: v.update({"llama.rope.dimension_count": (v["llama.rope.dimension_count"][0], 8)}),
        "llama.rope.dimension_count: got 8, allowed an integer from 16 to 16",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    path = write(*checkpoint("llama-gqa-tied"), tmp_path / "model.gguf")
    change, message = WRONG[name]
    rewrite(path, change)
    with pytest.raises(kv.errors.FormatError) as error:
        kv.models.load(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_a_decay_that_grows_is_refused(tmp_path: Path) -> None:
    path = write(*checkpoint("qwen3-5-dense"), tmp_path / "model.gguf")
    rewrite(path, lambda _, tensors: tensors.update({"blk.0.ssm_a": (np.ones(4, np.float32), Kind.F32)}))
    with pytest.raises(kv.errors.FormatError, match=r"blk\.0\.ssm_a: got a number that is not below 0"):
        kv.models.load(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write(*checkpoint("llama-gqa-tied"), tmp_path / "model.gguf")
    parts = kv.models.gguf.read(path)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(kv.errors.FormatError, match="ended early"):
        parts.sources["model.layers.1.mlp.up_proj.weight"].read()


def test_mutations(tmp_path: Path) -> None:
    """Hundreds here; gguf_mutations.py plays as many as one likes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("seed 7")
    outcomes, _ = gguf_mutations.play(7, MUTATIONS, tmp_path)
    assert outcomes["a model"] > MUTATIONS // 60 and outcomes["FormatError"] > MUTATIONS // 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024  # KiB
