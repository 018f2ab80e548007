"""A GGUF file's keys as a checkpoint's ``config.json``: what architectures have in common.

Each family adds its own (``GgufForm.read``) and then reads the whole as it reads a folder's, so each rule about sizes
stands in one place. What a file does not say, because llama.cpp takes it for granted, is filled in here.
"""

from __future__ import annotations

import math
import re

from ...errors import FormatError
from .keys import Keys
from .reader import GgufFile
from .rope import divisors, factor_key, long_scaling, original_length, rope_scaling


class Description:
    """A file's keys and tensors while they become a configuration. ``divided``: see :class:`GgufForm`."""

    def __init__(self, file: GgufFile, keys: Keys, divided: bool = False) -> None:
        self.file = file
        self.keys = keys
        self.divided = divided
        self.layers = self._layers()
        self.heads = self.per_block(".attention.head_count")

    def _layers(self) -> int:
        """Every stored block counts; the last ones may predict further tokens, which no layer of a model does."""
        keys = self.keys
        found = {int(match[1]) for name in self.file.tensors if (match := re.match(r"blk\.(\d{1,9})\.", name))}
        total = keys.integer(".block_count", 1, max(len(found), 1))
        if found and max(found) >= total:
            raise keys.error(".block_count", total, f"{max(found) + 1}: there are tensors of blk.{max(found)}")
        further = keys.integer(".nextn_predict_layers", 0, total - 1, 0)
        for block in range(total - further, total):
            if not self.has(f"blk.{block}.nextn.eh_proj.weight"):
                raise keys.error(
                    ".nextn_predict_layers", further, f"0 where there is no blk.{block}.nextn.eh_proj.weight"
                )
        return total - further

    def per_block(self, key: str, least: int = 1, most: int = 2**31 - 1, default: int | None = None) -> int:
        """An integer, or a list of equal ones, one for each block."""
        return self.keys.per_block(key, self.keys.integer(".block_count"), least, most, default)

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def in_any_layer(self, tensor: str) -> bool:
        return any(self.has(f"blk.{layer}.{tensor}") for layer in range(self.layers))

    def head_dim(self) -> int:
        keys = self.keys
        default = keys.integer(".embedding_length") // self.heads
        size = keys.integer(".attention.key_length", default=max(default, 1))
        if size % 2:
            raise keys.error(".attention.key_length", size, "an even number")
        keys.integer(".attention.value_length", size, size, size)
        return size

    def rotated(self) -> int:
        """Numbers of each head, which rotate in pairs."""
        found = self.keys.integer(".rope.dimension_count", 2, self.head_dim(), self.head_dim())
        if found % 2:
            raise self.keys.error(".rope.dimension_count", found, "an even number")
        return found

    def groups(self) -> int:
        """Heads of k and v, each of which as many heads of q share; of the blocks that attend, where others have 0."""
        key = ".attention.head_count_kv"
        if self.keys.is_list(key):
            counts = {int(each) for each in self.keys.numbers(key, self.keys.integer(".block_count"))} - {0}
            if len(counts) > 1:
                raise self.keys.error(key, sorted(counts), "the same number in each block that attends, 0 in others")
            found = counts.pop() if counts else self.heads
            if not 1 <= found <= self.heads:
                raise self.keys.error(key, found, f"1 to {self.heads}")
        else:
            found = self.keys.integer(key, 1, self.heads, self.heads)
        if self.heads % found:
            raise self.keys.error(
                ".attention.head_count_kv", found, f"a divisor of attention.head_count ({self.heads})"
            )
        return found

    def rows_of(self, tensor: str, axis: int = 0) -> int:
        found = self.file.tensors.get(tensor)
        if found is None or axis >= len(found.shape):
            raise FormatError(f"[models.load] {self.file.path}: tensor {tensor!r} is missing or has too few axes")
        return found.shape[axis]

    def hidden(self) -> int:
        """The size of rows, which no head changes."""
        size = self.keys.integer(".embedding_length")
        out = self.keys.integer(".embedding_length_out", 0, default=0)
        if out not in (0, size):
            raise self.keys.error(".embedding_length_out", out, f"0 or {size}")
        return size

    def check_attention(self, scalar: float) -> None:
        """Scores are multiplied by ``scalar``^-0.5, and no key may say something else."""
        given = self.keys.number(".attention.scale", 0.0)
        if given and not math.isclose(given, scalar**-0.5, rel_tol=1e-6):
            raise self.keys.error(".attention.scale", given, f"0 or {scalar**-0.5:.7g}")

    def each(self, key: str, least: int = 0, most: int = 2**31 - 1) -> list[int]:
        """Of each layer, by one integer for all or a list with one for each block."""
        keys, blocks = self.keys, self.keys.integer(".block_count")
        if not keys.is_list(key):
            return [keys.integer(key, least, most)] * self.layers
        found = keys.numbers(key, blocks, "block")
        if found.dtype.kind not in "iu" or not ((found >= least) & (found <= most)).all():
            raise keys.error(key, found, f"integers from {least} to {most}")
        return [int(value) for value in found[: self.layers]]

    def sized(self, scalar: float | None = None) -> dict[str, object]:
        """The keys of every architecture but for those of keys and values, and of rotation. ``scalar``: what attention
        is scaled by, if not a head's size."""
        keys = self.keys
        rows = self.rows_of("token_embd.weight")
        self.check_attention(scalar or self.head_dim())
        return {
            "vocab_size": keys.integer(".vocab_size", rows, rows, rows),
            "hidden_size": self.hidden(),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": keys.integer(".context_length"),
            "rms_norm_eps": keys.positive(".attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": not self.has("output.weight"),
            "attention_bias": self.in_any_layer("attn_output.bias"),
        }

    def still(self, scalar: float | None = None) -> dict[str, object]:
        """The same with keys and values, of a model that does not rotate."""
        return {**self.sized(scalar), "num_key_value_heads": self.groups(), "head_dim": self.head_dim()}

    def common(self, scalar: float | None = None, theta: float | None = None) -> dict[str, object]:
        """The same with rotation. ``theta``: if not what ``rope.freq_base`` says."""
        theta = theta or self.keys.positive(".rope.freq_base", 10000.0)
        raw = {**self.still(scalar), "rope_theta": theta}
        scaling = rope_scaling(self, theta)
        return raw if scaling is None else {**raw, "rope_scaling": scaling}

    def slides(self, every: int) -> list[bool]:
        """Of each layer, whether it has a window. The file's pattern is a number n, each n-th layer sees everything and
        of 0 none does, or a list; ``every``: where it has none."""
        key = ".attention.sliding_window_pattern"
        if self.keys.is_list(key):
            return self.keys.flags(key, self.layers, "layer")
        every = self.keys.integer(key, 0, default=every)
        return [not every or (layer + 1) % every != 0 for layer in range(self.layers)]

    def axes(self) -> list[int] | None:
        """How many rotated pairs each of four axes of positions has; None where positions are one number."""
        key = ".rope.dimension_sections"
        if not self.keys.has(key):
            return None
        found = self.keys.numbers(key, 4, "axis")
        if found.dtype.kind not in "iu" or (found < 0).any():
            raise self.keys.error(key, found, "integers of 0 or more")
        axes = [int(each) for each in found]
        return axes if axes[0] and axes[1] else None

    def check_sliding_sizes(self) -> None:
        """Heads of layers with a window are as large as others, and rotate whole."""
        size = self.head_dim()
        for key in (".attention.key_length_swa", ".attention.value_length_swa", ".rope.dimension_count_swa"):
            self.keys.integer(key, size, size, size)

    def unscaled(self) -> None:
        """Raises ``kv.errors.FormatError`` where frequencies are scaled."""
        scaling = rope_scaling(self, self.keys.positive(".rope.freq_base", 10000.0))
        if scaling is not None and scaling["rope_type"] == "linear":
            raise self.keys.error(factor_key(self.keys), scaling["factor"], "0 or 1")
        if scaling is not None:
            raise self.keys.error(".rope.scaling.type", scaling["rope_type"], "none")

    def long(self) -> dict[str, object]:
        """RoPE of Phi-3."""
        scaling = long_scaling(self)
        return {
            "rope_theta": self.keys.positive(".rope.freq_base", 10000.0),
            "partial_rotary_factor": self.rotated() / self.head_dim(),
            "original_max_position_embeddings": original_length(self.keys),
            **({} if scaling is None else {"rope_scaling": scaling}),
        }

    def divisors(self, name: str) -> list[float]:
        """What each frequency is divided by."""
        return [float(each) for each in divisors(self, name)]

    def attends(self) -> list[bool]:
        """Of each layer, by its heads of k and v."""
        key = ".attention.head_count_kv"
        if not self.keys.is_list(key):
            return [True] * self.layers
        return [each > 0 for each in self.keys.numbers(key, self.keys.integer(".block_count"))[: self.layers]]

    def attending(self, scalar: float | None = None, theta: float | None = None) -> dict[str, object]:
        """The same of a model all of whose layers attend, and rotate whole heads."""
        keys = self.keys
        keys.integer(".nextn_predict_layers", 0, 0, 0)
        size = self.head_dim()
        keys.integer(".rope.dimension_count", size, size, size)
        return self.common(scalar, theta)

    def partly(self, scalar: float | None = None, theta: float | None = None) -> dict[str, object]:
        """As :meth:`dense`, of a model that may rotate a part of each head."""
        self.keys.integer(".nextn_predict_layers", 0, 0, 0)
        return {
            **self.common(scalar, theta),
            "partial_rotary_factor": self.rotated() / self.head_dim(),
            "intermediate_size": self.per_block(".feed_forward_length"),
        }

    def dense(self, scalar: float | None = None, theta: float | None = None) -> dict[str, object]:
        """The same, and what a model without experts says."""
        return {
            **self.attending(scalar, theta),
            "intermediate_size": self.per_block(".feed_forward_length"),
            "mlp_bias": self.in_any_layer("ffn_gate.bias"),
        }
