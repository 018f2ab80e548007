"""A GGUF file's tensors under the names and in the layout of checkpoints: what converters did is undone here.

- Arch ``llama`` rotates neighbouring numbers of a head, checkpoints rotate its halves: rows of q and k are taken back
  from [head, pair, half] to [head, half, pair]. The other architectures rotate halves in both.
- Norms that multiply by (1 + weight) are stored with the one. Taking it off and adding it again is exact from 0.5 on.
- ``ssm_a`` is -exp(A_log), and convolutions have lost their axis of length one; of Mamba-2 ``ssm_a`` and ``ssm_d`` have
  one more, and the norm has its groups one below the other.
- ``qwen35`` has value heads round robin over the key heads, checkpoints have them grouped by key head. ``qwen3next``
  has them grouped, but q, k, v and z of all heads one after the other where checkpoints go key head by key head.
- ``deepseek2`` may have the maps of latents as two tensors, of which that of keys is turned round for each head.
- The block that predicts further tokens has names of its own beside those of a layer (models/mtp.py); where its last
  norm is missing that is the model's, as in llama.cpp.
- Experts are one tensor for all, in files of 2023 one each; q, k and v of a layer may be one tensor, too, and so may
  gate and up. Matrices that checkpoints number are one tensor for all.
- ``kimi-linear`` has the convolutions of q, k and v one by one, where the model has them one below the other.

Checked against llama.cpp's conversion scripts and transformers' GGUF loader, and by tests/python/test_gguf.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import FormatError
from ..config import ModelConfig
from ..delta import HybridConfig, rows_by_part
from ..experts_config import ExpertsConfig
from ..gguf_form import GgufForm
from ..latent_config import LatentConfig
from ..mtp import LAYER, OWN_EMBEDDING, OWN_HEAD
from ..recurrent import RecurrentConfig
from ..weights import Array, WeightSource, to_float32
from .reader import GgufFile, Tensor
from .weights import changed, joined, moved, reordered, reordered_columns, rows_of, source

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_COMMON = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PREDICTION = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
    OWN_EMBEDDING: "nextn.embed_tokens.weight",
    OWN_HEAD: "nextn.shared_head_head.weight",
}
_MAY_BE_MISSING = ("mtp.norm.weight", OWN_EMBEDDING, OWN_HEAD)  # as llama.cpp has it
_CONVOLUTIONS = ("linear_attn.conv1d.weight", "conv.conv.weight", "mamba.conv1d.weight")
_HALVES = ("mlp.gate_proj", "mlp.up_proj")  # of one tensor, in files without ffn_gate
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
_NUMBERED = re.compile(r"(.*)\.(\d+)\.weight")


def checkpoint_sources(
    file: GgufFile,
    form: GgufForm,
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    head: Mapping[str, tuple[int, ...]],
) -> dict[str, WeightSource]:
    """The tensors that ``shapes`` names, and those of the prediction head that ``head`` names; {}: it stays unread.

    Raises ``kv.errors.FormatError`` naming a tensor that is missing, has another shape or a type that cannot be read,
    and the ones that nobody asked for.
    """
    search = _Search(file, form, config)
    found = {name: search.find(name, shape) for name, shape in shapes.items()}
    for name, shape in head.items():
        source = search.find_of_head(name, shape)
        if source is not None:
            found[name] = source
    search.check_rest(len(head) > 0)
    return found


class _Search:
    """Looks tensors up and remembers which were wanted."""

    def __init__(self, file: GgufFile, form: GgufForm, config: ModelConfig) -> None:
        self._file = file
        self._form = form
        self._config = config
        self._leaves = {**_COMMON, **form.leaves}
        self._used = {*form.apart(config), *(("rope_freqs.weight",) if form.divided else ())}  # see rope.py

    def find(self, name: str, shape: tuple[int, ...]) -> WeightSource:
        """The source of a checkpoint's tensor."""
        top, numbered = self._leaves.get(name) or _TOP.get(name), _NUMBERED.fullmatch(name)
        if top is not None:
            return self._undone(name, shape, self._whole(top, shape))
        if numbered is not None and numbered[1] in self._leaves:
            return self._of_stack(self._leaves[numbered[1]], int(numbered[2]), shape)
        _, _, block, leaf = name.split(".", 3)
        return self._undone(leaf, shape, self._in_block(f"blk.{block}", leaf, shape))

    def find_of_head(self, name: str, shape: tuple[int, ...]) -> WeightSource | None:
        """Of the prediction head, which is the first block behind the layers; None: the model has it for both."""
        block = f"blk.{self._config.num_hidden_layers}"
        if name not in _PREDICTION:
            leaf = name.removeprefix(f"{LAYER}.")
            return self._undone(leaf, shape, self._in_block(block, leaf, shape))
        leaf = _PREDICTION[name]
        written = f"{block}.{leaf}"
        if written not in self._file.tensors and name in _MAY_BE_MISSING:
            if name != "mtp.norm.weight":
                return None
            written = _TOP["model.norm.weight"]
        return self._undone(leaf, shape, self._whole(written, shape))

    def check_rest(self, head: bool) -> None:
        """Blocks that predict further tokens stay unread but for the ``head``, see metadata.py. Other tensors that were
        not asked for would change what is computed, as biases, scales, adapters or factors of a layer do: they are
        refused."""
        layers = self._config.num_hidden_layers + head
        extra = sorted(name for name in self._file.tensors.keys() - self._used if _block(name) < layers)
        if extra:
            names = ", ".join(extra[:4]) + (", ..." if len(extra) > 4 else "")
            raise self._error(f"{len(extra)} tensors the model has no use for: {names}")

    def _in_block(self, block: str, leaf: str, shape: tuple[int, ...]) -> WeightSource:
        expert = _EXPERT.fullmatch(leaf)
        if expert is not None and expert[3] == "bias":
            name = f"{block}.ffn_{expert[2]}_exps.bias"
            return self._expert_bias(name, int(expert[1]), shape)
        if expert is not None:
            return self._expert(block, int(expert[1]), expert[2], shape)
        if leaf == "linear_attn.in_proj_qkvz.weight":
            return self._qkvz(block, shape)
        if leaf.endswith("e_score_correction_bias"):
            return self._bias_of_choice(f"{block}.exp_probs_b.bias", shape[-1])
        if leaf == "self_attn.kv_b_proj.weight" and f"{block}.attn_kv_b.weight" not in self._file.tensors:
            return self._maps_of_latents(block, shape)
        if leaf == "self_attn.conv1d.weight":
            return self._convolutions(block, shape)
        base, _, kind = leaf.rpartition(".")
        written = self._leaves.get(leaf) or f"{self._leaves[base]}.{kind}"
        if leaf.startswith("self_attn.") and base[-6:] in ("q_proj", "k_proj", "v_proj"):
            return self._projection(f"{block}.{written}", f"{block}.attn_qkv.{kind}", base[-6], shape)
        if base in _HALVES and self._has_both(block, kind, shape[0]):
            whole = self._whole(f"{block}.ffn_up.{kind}", (2 * shape[0], *shape[1:]))
            return rows_of(whole, f"{block}.{written}", _HALVES.index(base) * shape[0], shape)
        if leaf in _CONVOLUTIONS:
            return self._whole(f"{block}.{written}", (shape[0], shape[2]))
        if leaf in ("mamba.A_log", "mamba.D"):
            return self._whole(f"{block}.{written}", (*shape, 1))
        if leaf == "self_attn.A_log":
            return self._but_for_ones(f"{block}.{written}", shape)
        if leaf == "mamba.norm.weight":
            assert isinstance(self._config, RecurrentConfig)
            groups = self._config.mamba_groups
            return self._whole(f"{block}.{written}", (groups, shape[0] // groups))
        if leaf == "mlp.shared_expert_gate.weight" and len(self._tensor(f"{block}.{written}").shape) == 1:
            return self._whole(f"{block}.{written}", shape[1:])
        return self._whole(f"{block}.{written}", shape)

    def _has_both(self, block: str, kind: str, rows: int) -> bool:
        """Whether ffn_up is gate and up, of ``rows`` each."""
        both = self._file.tensors.get(f"{block}.ffn_up.{kind}")
        return f"{block}.ffn_gate.{kind}" not in self._file.tensors and both is not None and both.shape[0] == 2 * rows

    def _projection(self, name: str, fused: str, part: str, shape: tuple[int, ...]) -> WeightSource:
        """q, k or v: a tensor of its own, or rows of one for all three."""
        if name in self._file.tensors or fused not in self._file.tensors:
            return self._whole(name, shape)
        c = self._config
        keys = c.num_key_value_heads * c.head_dim
        queries = self._tensor(fused).shape[0] - 2 * keys
        whole = self._whole(fused, (queries + 2 * keys, *shape[1:]))
        begin = {"q": 0, "k": queries, "v": queries + keys}[part]
        if (queries if part == "q" else keys) != shape[0]:
            raise self._error(f"{fused}: got {queries + 2 * keys} rows, expected {shape[0] + 2 * keys}")
        return rows_of(whole, name, begin, shape)

    def _expert(self, block: str, index: int, part: str, shape: tuple[int, ...]) -> WeightSource:
        """A matrix of ffn_gate_exps [experts, inner, hidden] or its like; gate and up may be one, in this order."""
        assert isinstance(self._config, ExpertsConfig)
        count, (rows, columns) = self._config.num_experts, shape
        name, begin, every = f"{block}.ffn_{part}_exps.weight", 0, rows
        single, fused = f"{block}.ffn_{part}.{index}.weight", f"{block}.ffn_gate_up_exps.weight"
        if name not in self._file.tensors and single in self._file.tensors:
            return self._whole(single, shape)
        if part != "down" and name not in self._file.tensors and fused in self._file.tensors:
            name, begin, every = fused, rows if part == "up" else 0, 2 * rows
        tensor = self._checked(name, (count, every, columns))
        stacked = source(tensor._replace(shape=(count * every, columns)), name)
        return rows_of(stacked, f"{name}[{index}]", index * every + begin, shape)

    def _expert_bias(self, name: str, index: int, shape: tuple[int, ...]) -> WeightSource:
        """Of ffn_gate_exps [experts, outputs] or its like."""
        assert isinstance(self._config, ExpertsConfig)
        whole = self._whole(name, (self._config.num_experts, *shape))
        return whole.part(f"{name}[{index}]", index, index + 1, shape, lambda slab: slab[0])

    def _bias_of_choice(self, name: str, experts: int) -> WeightSource:
        """[experts], or [1, experts] as some checkpoints have it."""
        tensor = self._tensor(name, (experts,))
        return self._whole(name, (1, experts) if len(tensor.shape) > 1 else (experts,))

    def _maps_of_latents(self, block: str, shape: tuple[int, ...]) -> WeightSource:
        """Head by head, from attn_k_b [heads, rank, nope] and attn_v_b [heads, value, rank]."""
        assert isinstance(self._config, LatentConfig)
        heads, (rank, nope, _, value, _) = self._config.num_attention_heads, self._config.latent
        parts = []
        for name, rows, columns in (("attn_k_b", rank, nope), ("attn_v_b", value, rank)):
            tensor = self._checked(f"{block}.{name}.weight", (heads, rows, columns))
            parts.append(source(tensor._replace(shape=(heads * rows, columns)), tensor.name))

        def read(begin: int, end: int) -> Array:
            keys, values = (to_float32(part.read(), part.dtype).reshape(heads, -1, part.shape[1]) for part in parts)
            return np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(shape)[begin:end]

        return WeightSource(f"{block}.attn_kv_b.weight", "F32", shape, 4 * math.prod(shape), parts[0].origin, read)

    def _convolutions(self, block: str, shape: tuple[int, ...]) -> WeightSource:
        """Of q, k and v, which are equally wide."""
        width, taps = shape[0] // 3, shape[2]
        parts = [self._but_for_ones(f"{block}.ssm_conv1d_{part}.weight", (width, taps)) for part in "qkv"]
        return joined([moved(part, (width, taps), lambda values: values) for part in parts])

    def _but_for_ones(self, name: str, shape: tuple[int, ...]) -> WeightSource:
        """A tensor of ``shape`` with axes of length one in any places: llama.cpp's quantiser drops some."""
        found = self._tensor(name, shape).shape
        if [size for size in found if size > 1] != [size for size in shape if size > 1]:
            raise self._error(f"{name}: got shape {list(found)}, expected {list(shape)}")
        return self._whole(name, found)

    def _of_stack(self, name: str, index: int, shape: tuple[int, ...]) -> WeightSource:
        """A matrix of ``name`` [count, rows, columns]."""
        tensor = self._tensor(name, shape)
        if len(tensor.shape) != 3 or tensor.shape[0] <= index or tensor.shape[1:] != shape:
            raise self._error(f"{name}: got shape {list(tensor.shape)}, expected {[index + 1, *shape]} or more")
        stacked = source(tensor._replace(shape=(tensor.shape[0] * shape[0], shape[1])), name)
        return rows_of(stacked, f"{name}[{index}]", index * shape[0], shape)

    def _qkvz(self, block: str, shape: tuple[int, ...]) -> WeightSource:
        """Key head by key head, from attn_qkv and attn_gate; files of the first days have it as it was, as ssm_in."""
        assert isinstance(self._config, HybridConfig)
        if f"{block}.ssm_in.weight" in self._file.tensors:
            return self._whole(f"{block}.ssm_in.weight", shape)
        c = self._config
        parts = [
            self._whole(f"{block}.{name}.weight", (rows, c.hidden_size))
            for name, rows in (("attn_qkv", c.sizes.conv_width), ("attn_gate", c.sizes.value_width))
        ]
        qkv, z, _, _ = rows_by_part(c)
        return reordered(joined(parts), np.argsort(np.concatenate([qkv, z])))

    def _undone(self, leaf: str, shape: tuple[int, ...], found: WeightSource) -> WeightSource:
        """``found`` in the checkpoint's layout and ``shape``."""
        base, form, c = leaf.rpartition(".")[0], self._form, self._config
        if form.pairs and base in ("self_attn.q_proj", "self_attn.k_proj"):
            order = np.arange(shape[0]).reshape(-1, c.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
            return reordered(found, order)
        if form.offset_norms and base.endswith("norm") and base != "linear_attn.norm":
            return changed(found, shape, lambda values: values - np.float32(1))
        if leaf.startswith("linear_attn."):
            assert isinstance(c, HybridConfig)
            found = _grouped(found, leaf, c) if form.round_robin else found
        if leaf.endswith(".A_log"):
            return changed(found, shape, lambda values: self._logarithm(found.name, values))
        return found if found.shape == shape else moved(found, shape, lambda values: values)

    def _logarithm(self, name: str, values: Array) -> Array:
        if not ((values < 0) & np.isfinite(values)).all():
            raise self._error(f"{name}: got a number that is not below 0, allowed finite numbers below 0")
        return np.log(-values)

    def _whole(self, name: str, shape: tuple[int, ...]) -> WeightSource:
        return source(self._checked(name, shape), name)

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensor(name, shape)
        if tensor.shape != shape:
            raise self._error(f"{name}: got shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def _tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            expected = "" if shape is None else f", expected shape {list(shape)}"
            raise self._error(f"tensor {name!r} is missing{expected}")
        self._used.add(name)
        return tensor

    def _error(self, message: str) -> FormatError:
        return FormatError(f"[models.load] {self._file.path}: {message}")


def _grouped(found: WeightSource, leaf: str, c: HybridConfig) -> WeightSource:
    """Value heads from [value, key head] to [key head, value], wherever the tensor counts them."""
    groups = c.linear_num_key_heads

    def order(length: int, begin: int = 0) -> Any:
        heads = np.arange(begin, length).reshape(c.linear_num_value_heads // groups, groups, -1)
        return np.concatenate([np.arange(begin), heads.swapaxes(0, 1).reshape(-1)])

    if leaf == "linear_attn.norm.weight":
        return found
    if leaf == "linear_attn.out_proj.weight":
        return reordered_columns(found, order(c.linear_num_value_heads), c.linear_value_head_dim)
    if leaf in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return reordered(found, order(c.sizes.conv_width, 2 * c.sizes.key_width))
    return reordered(found, order(found.shape[0]))


def _block(name: str) -> int:
    """The number of a tensor's block; -1 if it is in none."""
    found = re.match(r"blk\.(\d{1,9})\.", name)
    return -1 if found is None else int(found[1])
