"""Every tensor of a GGUF file has a use: one more is refused by name, and so is a file without one of its own."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_sweep
import kvtrie as kv
from bounds import LOGITS_OF_KINDS, close
from circles import CIRCLE
from gguf_sweep import BASES
from test_models import all_logits

TOKENS = gguf_sweep.TOKENS
COUNT = {"test": 12, "ci": 150, "soak": 100_000}[CIRCLE]  # of each architecture
SUFFIXES = (".weight", ".bias", ".scale", ".input_scale", ".weight.lora_a", "")
# What llama.cpp and converters have names for beside those of the package.
MORE = (
    *(
        "blk.0.rope_freqs",
        "blk.0.attn_q.weight.lora_b",
        "v.blk.0.attn_q",
        "mm.0",
        "blk.0.nextn.eh_proj",
        "blk.9.attn_q",
    ),
    *("token_embd.0", "rope.freqs", "direction.1", "blk.00.attn_q", "blk.0.attn_q.weight.in_sum2", "a.b.c"),
)


def names() -> list[str]:
    """All that the package has, of any architecture, for the tensors of a first block and those beside blocks."""
    written = [*gguf.constants.TENSOR_NAMES.values(), *MORE]
    return sorted({f"{name.format(bid=0, xid=0)}{suffix}" for name in written for suffix in SUFFIXES})


def read(architecture: str, arrays: dict[str, Any], path: Path) -> Any:
    return kv.models.gguf.read(gguf_sweep.save(architecture, gguf_sweep.base(architecture).values, arrays, path))


@pytest.mark.parametrize("architecture", BASES)
def test_one_more_tensor_is_refused(architecture: str, tmp_path: Path) -> None:
    """It is named; or, where the file could not do without another then, that one."""
    base = gguf_sweep.base(architecture)
    used = {"output.weight", *(["rope_freqs.weight"] if architecture == "llama" else [])}
    others = [name for name in names() if name not in base.arrays and name not in used]
    assert len(others) > 1000
    for name in random.Random(1).sample(others, min(COUNT, len(others))):
        with pytest.raises(kv.errors.FormatError) as error:
            read(architecture, {**base.arrays, name: np.ones((8, 8), np.float32)}, tmp_path / "model.gguf")
        said = str(error.value)
        assert name in said or _needs_another(name, said), f"{name}: {said}"


def _needs_another(name: str, said: str) -> bool:
    """A bias of one layer asks for those of all; fused experts stand for separate ones, and a block asks for more."""
    block = r"tensor 'blk\.\d+\.\w+\.(weight|bias)' is missing"
    begins = re.search(block, said) is not None and name.endswith(".bias")
    stands = re.search(r"(expert_count|block_count|nextn_predict_layers|blk\.0\.\w+): got|is missing", said) is not None
    return begins or (stands and name.startswith(("blk.0.", "blk.00.", "blk.9.")))


@pytest.mark.parametrize("architecture", BASES)
def test_a_file_without_one_of_its_tensors(architecture: str, tmp_path: Path) -> None:
    """Is refused, and the tensor named; but a head that is not there is the embedding."""
    base = gguf_sweep.base(architecture)
    mine = [name for name in base.arrays if name != "output.weight"]
    for name in random.Random(2).sample(mine, min(COUNT // 2, len(mine))):
        arrays = {other: array for other, array in base.arrays.items() if other != name}
        with pytest.raises(kv.errors.FormatError) as error:
            read(architecture, arrays, tmp_path / "model.gguf")
        assert name in str(error.value) or re.search(r"tensor 'blk\.\d+\.\S+' is missing", str(error.value)), name


@pytest.mark.parametrize("architecture", [each for each in BASES if each in ("llama", "gemma3", "qwen35")])
def test_a_head_is_its_own_where_there_is_one(architecture: str, tmp_path: Path) -> None:
    """Stored beside the embedding, it is the head, whatever models of this family have."""
    base = gguf_sweep.base(architecture)
    head = np.random.default_rng(1).standard_normal(base.arrays["token_embd.weight"].shape).astype(np.float32)
    arrays = {**base.arrays, "output.weight": head}
    path = gguf_sweep.save(architecture, base.values, arrays, tmp_path / "model.gguf")
    got = all_logits(kv.models.load(path, dtype="float32"), TOKENS, len(TOKENS))
    raw = gguf_sweep.meaning(architecture, gguf_sweep.read_gguf(path).values, arrays)
    assert raw is not None and not raw["tie_word_embeddings"]
    wanted = kv.models.from_weights(raw, {**base.weights, "lm_head.weight": head}, dtype="float32")
    close(got, all_logits(wanted, TOKENS, len(TOKENS)), LOGITS_OF_KINDS)
