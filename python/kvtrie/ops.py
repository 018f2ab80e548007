"""Operations on tensors: device in, device out.

Arrays among the arguments are copied to the device of the other tensors, or to the default device. Operations are
enqueued, never waited for; each row's result is independent of the other rows. Wrong arguments raise ``ArgumentError``
or ``ArgumentTypeError`` that name the operation and the argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._core import StepGraphs
from ._core import ops as _ops

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

PackedPair: TypeAlias = _ops.PackedPair
PackedSet: TypeAlias = _ops.PackedSet
PackedWeight: TypeAlias = _ops.PackedWeight
RopeTable: TypeAlias = _ops.RopeTable
add: Final = _ops.add
argmax: Final = _ops.argmax
attend_chosen: Final = _ops.attend_chosen
attention: Final = _ops.attention
can_route: Final = _ops.can_route
causal_conv1d: Final = _ops.causal_conv1d
choose_keys: Final = _ops.choose_keys
clamp: Final = _ops.clamp
concat: Final = _ops.concat
embedding: Final = _ops.embedding
gated_delta: Final = _ops.gated_delta
gelu_mul: Final = _ops.gelu_mul
l2_norm: Final = _ops.l2_norm
layer_norm: Final = _ops.layer_norm
matmul: Final = _ops.matmul
matmul_gated: Final = _ops.matmul_gated
matmul_routed: Final = _ops.matmul_routed
mul: Final = _ops.mul
pack: Final = _ops.pack
pack_blocks: Final = _ops.pack_blocks
pack_pair: Final = _ops.pack_pair
pack_pair_blocks: Final = _ops.pack_pair_blocks
relu_squared: Final = _ops.relu_squared
rms_norm: Final = _ops.rms_norm
rope: Final = _ops.rope
route: Final = _ops.route
sample: Final = _ops.sample
scale_rows: Final = _ops.scale_rows
sigmoid: Final = _ops.sigmoid
signed_root: Final = _ops.signed_root
silu: Final = _ops.silu
silu_mul: Final = _ops.silu_mul
softmax: Final = _ops.softmax
softplus: Final = _ops.softplus
split: Final = _ops.split
ssd: Final = _ops.ssd
integer_units: Final = _ops.integer_units
vector_width: Final = _ops.vector_width
warm_up: Final = _ops.warm_up
weighted_sum: Final = _ops.weighted_sum

__all__ = [
    "PackedPair",
    "PackedSet",
    "PackedWeight",
    "RopeTable",
    "StepGraphs",
    "add",
    "argmax",
    "attend_chosen",
    "attention",
    "can_route",
    "causal_conv1d",
    "choose_keys",
    "clamp",
    "concat",
    "embedding",
    "gated_delta",
    "gelu_mul",
    "integer_units",
    "l2_norm",
    "layer_norm",
    "matmul",
    "matmul_gated",
    "matmul_routed",
    "mul",
    "pack",
    "pack_blocks",
    "pack_pair",
    "pack_pair_blocks",
    "relu_squared",
    "rms_norm",
    "rope",
    "route",
    "sample",
    "scale_rows",
    "sigmoid",
    "signed_root",
    "silu",
    "silu_mul",
    "softmax",
    "softplus",
    "split",
    "ssd",
    "vector_width",
    "warm_up",
    "weighted_sum",
]
