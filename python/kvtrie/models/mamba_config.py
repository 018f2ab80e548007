"""The settings of a configuration's layers of Mamba-2, under the names that Bamba, Granite 4 and Falcon-H1 share.

Source: transformers 5.24, the configuration classes of these families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import FormatError
from .common_settings import SIZE
from .experts_config import Fields
from .reader import Raw, Reader
from .settings import Settings, neutral, read

if TYPE_CHECKING:
    from .gguf.metadata import Description

_MOST = 2**20
LINEAR = "linear_attention"  # the kind of such a layer, in transformers 5
_EARLIER = {"mamba": LINEAR, "attention": "full_attention"}  # names of kinds in files of transformers 4

MAMBA: Settings = {
    **dict.fromkeys(("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand"), SIZE),
    "mamba_d_head": read("a head's size; auto, or absent: as large as mamba_expand and the heads make it"),
    "mamba_conv_bias": read("whether the convolution has biases"),
    "mamba_proj_bias": read("whether the projections of recurrent layers have biases"),
    "time_step_limit": neutral("transformers limits steps in a prompt, and not when it decodes", [0.0, math.inf]),
    "mamba_chunk_size": neutral("transformers computes the same numbers, in another way or order"),
    "mamba_ssm_dtype": neutral("recurrent states are float32"),
    "number_of_conv_states": neutral("recurrent layers have one convolution", 1),
}


def mamba_fields(raw: Raw, reader: Reader, where: str, inner: int | None = None) -> Fields:
    """Those of :class:`RecurrentConfig` about Mamba-2. ``inner``: the width of x; None: by mamba_expand."""
    heads = reader.within("mamba_n_heads", 1, _MOST, 128)
    expand = reader.within("mamba_expand", 1, _MOST, 2)
    if inner is None:
        inner = expand * reader.integer("hidden_size")
    size = inner // heads
    if raw.get("mamba_d_head") not in (None, "auto"):
        size = reader.within("mamba_d_head", 1, _MOST)
    if size * heads != inner:
        raise FormatError(
            f"[models.config] {where}: mamba_n_heads: got {heads}, mamba_d_head: got {size}, "
            f"allowed heads of {inner} numbers together (mamba_d_ssm, mamba_expand, hidden_size)"
        )
    groups = reader.within("mamba_n_groups", 1, _MOST, 1)
    bias = reader.flag("mamba_proj_bias")
    return {
        "mamba_heads": heads,
        "mamba_head_dim": size,
        "mamba_groups": divisor(groups, heads, "mamba_n_groups", "mamba_n_heads", where),
        "mamba_state": reader.within("mamba_d_state", 1, _MOST, 256),
        "conv_width": reader.within("mamba_d_conv", 2, _MOST, 4),
        "conv_bias": not reader.null("mamba_conv_bias") and reader.flag("mamba_conv_bias", True),
        "mamba_bias": bias,
        "mamba_out_bias": bias,
    }


def divisor(groups: int, heads: int, name: str, of: str, where: str) -> int:
    if heads % groups:
        raise FormatError(f"[models.config] {where}: {name}: got {groups}, allowed a divisor of {of} ({heads})")
    return groups


def kinds_by_name(kinds: object, names: Mapping[str, str] = _EARLIER) -> object:
    """``layer_types`` with the names of today; what is no list of names stays as it is."""
    if not isinstance(kinds, (list, tuple)):
        return kinds
    return [names.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]


# ---- GGUF ------------------------------------------------------------------------------------------------------------

MAMBA_LEAVES = {
    "mamba.in_proj": "ssm_in",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
}
MAMBA_KEYS: Settings = {
    ".ssm.conv_kernel": read("tokens that the convolution sees"),
    ".ssm.state_size": read("size of a state"),
    ".ssm.group_count": read("groups that share B and C"),
    ".ssm.time_step_rank": read("heads"),
    ".ssm.inner_size": read("all heads together"),
}


def mamba_from_gguf(d: Description) -> dict[str, object]:
    """The keys of :func:`mamba_fields`, and ``mamba_d_ssm``."""
    keys = d.keys
    heads = keys.integer(".ssm.time_step_rank", 1, _MOST)
    inner = keys.integer(".ssm.inner_size")
    if inner % heads:
        raise keys.error(".ssm.inner_size", inner, f"a multiple of ssm.time_step_rank ({heads})")
    groups = keys.integer(".ssm.group_count", 1, _MOST)
    if heads % groups:
        raise keys.error(".ssm.group_count", groups, f"a divisor of ssm.time_step_rank ({heads})")
    return {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": groups,
        "mamba_d_state": keys.integer(".ssm.state_size", 1, _MOST),
        "mamba_d_conv": keys.integer(".ssm.conv_kernel", 2, _MOST),
        "mamba_conv_bias": d.in_any_layer("ssm_conv1d.bias"),
        "mamba_proj_bias": d.in_any_layer("ssm_in.bias"),
    }
