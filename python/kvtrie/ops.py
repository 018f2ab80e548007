"""Operations on tensors: device in, device out.

Arrays among the arguments are copied to the device of the other tensors, or to the default device. Operations are
enqueued, never waited for; each row's result is independent of the other rows. Wrong arguments raise ``ArgumentError``
or ``ArgumentTypeError`` that name the operation and the argument.
"""

from __future__ import annotations

from ._core import ops as _ops

PackedPair = _ops.PackedPair
PackedSet = _ops.PackedSet
PackedWeight = _ops.PackedWeight
RopeTable = _ops.RopeTable
add = _ops.add
argmax = _ops.argmax
attention = _ops.attention
can_route = _ops.can_route
causal_conv1d = _ops.causal_conv1d
concat = _ops.concat
embedding = _ops.embedding
gated_delta = _ops.gated_delta
gelu_mul = _ops.gelu_mul
l2_norm = _ops.l2_norm
layer_norm = _ops.layer_norm
matmul = _ops.matmul
matmul_gated = _ops.matmul_gated
matmul_routed = _ops.matmul_routed
mul = _ops.mul
pack = _ops.pack
pack_blocks = _ops.pack_blocks
pack_pair = _ops.pack_pair
pack_pair_blocks = _ops.pack_pair_blocks
rms_norm = _ops.rms_norm
rope = _ops.rope
route = _ops.route
sample = _ops.sample
scale_rows = _ops.scale_rows
sigmoid = _ops.sigmoid
silu = _ops.silu
silu_mul = _ops.silu_mul
softmax = _ops.softmax
softplus = _ops.softplus
split = _ops.split
vector_width = _ops.vector_width
warm_up = _ops.warm_up
weighted_sum = _ops.weighted_sum

__all__ = [
    "PackedPair",
    "PackedSet",
    "PackedWeight",
    "RopeTable",
    "add",
    "argmax",
    "attention",
    "can_route",
    "causal_conv1d",
    "concat",
    "embedding",
    "gated_delta",
    "gelu_mul",
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
    "rms_norm",
    "rope",
    "route",
    "sample",
    "scale_rows",
    "sigmoid",
    "silu",
    "silu_mul",
    "softmax",
    "softplus",
    "split",
    "vector_width",
    "warm_up",
    "weighted_sum",
]
