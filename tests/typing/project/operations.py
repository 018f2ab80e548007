"""Operations on tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import kvtrie as kv
from kvtrie import ops

Floats = npt.NDArray[np.float32]


def shared(context: object, queue: object, buffer: object) -> kv.Tensor:
    device = kv.Device.from_opencl(context, queue)
    use_handles(device, kv.Tensor.from_opencl(buffer, "float32", (3, 4), device, offset=16))
    return kv.Tensor.from_opencl(buffer, "float32", (3, 4), device)


def use_handles(device: kv.Device, tensor: kv.Tensor) -> None:
    assert_type(device.cl_context, int)
    assert_type(device.cl_queue, int)
    assert_type(tensor.cl_mem + tensor.cl_offset, int)


def products(x: Floats, w: Floats, blocks: npt.NDArray[np.uint8]) -> kv.Tensor:
    packed, pair = ops.pack(w, "q8_0"), ops.pack_pair(w, w, dtype="float16")
    assert_type(ops.pack_blocks(blocks, "q4_0", device=None), ops.PackedWeight)
    assert_type(ops.pack_pair_blocks(blocks, blocks, "q4_0"), ops.PackedPair)
    experts = ops.PackedSet(packed, 4)
    fill(experts, packed)
    chosen, factors = ops.route(x, 2, "softmax")
    assert_type(ops.matmul_routed(x, experts, chosen), kv.Tensor)
    assert_type(ops.scale_rows(x, factors), kv.Tensor)
    assert_type(ops.weighted_sum(x, factors), kv.Tensor)
    assert_type(ops.can_route(device=None), bool)
    assert_type(ops.matmul_gated(x, pair, activation="gelu"), kv.Tensor)
    assert_type(ops.matmul(x, [packed, packed], add=x), kv.Tensor)
    return ops.matmul(x, w, transpose_w=False, backend="kvtrie")


def fill(experts: ops.PackedSet, weight: ops.PackedWeight) -> None:
    experts.put(0, weight)


def read_packed(weight: ops.PackedWeight, pair: ops.PackedPair, experts: ops.PackedSet) -> None:
    assert_type(weight.shape + pair.shape + experts.shape, tuple[int, int, int, int, int, int])
    assert_type(weight.dtype + pair.dtype + experts.dtype, str)
    assert_type(weight.nbytes + pair.nbytes + experts.nbytes + len(experts), int)
    assert_type(weight.device, kv.Device | str)
    assert_type(pair.device, kv.Device | str)
    assert_type(experts.device, kv.Device | str)


def positions(x: Floats, table: ops.RopeTable) -> kv.Tensor:
    assert_type(table.head_dim + table.dims, int)
    made = ops.RopeTable(16, 1e4, 8, {"rope_type": "linear", "factor": 2.0}, True, length=64, device="cpu")
    return ops.rope(ops.rope(x, [0, 1], table=made), [0, 1], base=1e4, dims=8, scaling=None, interleaved=False)


def rows(x: Floats, logits: kv.Tensor) -> list[kv.Tensor]:
    made = [ops.silu(x), ops.sigmoid(x), ops.softplus(x), ops.softmax(x), ops.silu_mul(x, x), ops.gelu_mul(x, x)]
    made += [ops.add(x, x), ops.mul(x, x), ops.rms_norm(x, x, 1e-6, offset=1.0), ops.layer_norm(x, x, None, 1e-5)]
    made += [ops.clamp(x, -1.0, None, scale=2.0, shift=0.5)]
    made += [ops.l2_norm(x, 1e-6), ops.embedding(x, [1, 2]), ops.concat([x, x], axis=0), *ops.split(x, [1, 1])]
    made += [ops.attention(x, x, x, mask=x, scale=1.0, softcap=None, sinks=None)]
    made += [ops.attend_chosen(x, x, ops.choose_keys(x, x, x, x, 4), 2, scale=None)]
    made += [ops.argmax(logits), ops.sample(logits, 0.7, [4, 5], 0.9, seed=1, min_p=0.1, edits=None)]
    out, state = ops.causal_conv1d(x, x, states=None, row_starts=[0, 1], boundaries=[[1]])
    assert_type(state, kv.Tensor | None)
    return [*made, out, *ops.gated_delta(x, x, x, x, x), *ops.ssd(x, x, x, x, x, x)]


def warm_up() -> int:
    ops.warm_up(8, 2, 64, v_head_dim=None, dtype="float16", weight_dtype="q4_0", activation="silu", device=None)
    assert_type(ops.integer_units("cpu"), str)
    return ops.vector_width("cpu")
