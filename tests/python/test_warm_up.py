"""Nothing is compiled in the middle of a conversation, and compiling prints nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from circles import SOAK
from kvtrie.models import warm_up
from processes import run_python
from random_models import random_model

WORKER = Path(__file__).with_name("warm_up_worker.py")
DEFAULT_ROWS = (*warm_up.PACKED_ROWS, *warm_up.CLBLAST_ROWS)


@pytest.mark.parametrize(
    "kind", ["dense", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("window", "hybrid"))]
)
def test_after_the_caches_are_made_nothing_is_compiled_and_nothing_was_printed(
    kind: str, device: Any, tmp_path: Path
) -> None:
    """Programs and kernels as the device counts them, and the libraries of PoCL, which compiles for each local size.

    In the soak in a process that finds nothing compiled.
    """
    environment = {}
    if SOAK:
        (tmp_path / "pocl").mkdir()
        environment = {"KVTRIE_CACHE_DIR": str(tmp_path / "kvtrie"), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    done = run_python(WORKER, kind, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["more"] == {"programs": 0, "kernels": 0, "binaries": 0}
    assert 10 < found["programs"] <= found["kernels"]
    if "Portable Computing Language" in device.platform:
        assert found["kernels"] <= found["binaries"]


def test_without_a_warm_up_the_same_conversations_compile(device: Any) -> None:
    """So the counters see what the test above is about."""
    done = run_python(WORKER, "dense", "cold")
    assert done.returncode == 0, done.stderr
    more = json.loads(done.stdout)["more"]
    few = 5 if device.kind == "gpu" else 10  # products are CLBlast's there
    assert more["programs"] > few and more["kernels"] > few
    if "Portable Computing Language" in device.platform:
        assert more["binaries"] > few


def test_a_model_warms_up_once_for_each_dtype(device: Any) -> None:
    model = random_model("dense")
    calls: list[tuple[int, int]] = []
    model.warm_up("float16", lambda done, total: calls.append((done, total)))
    total = len(calls)
    assert calls == [(done, total) for done in range(1, total + 1)]
    before = device.memory()["launches"]
    model.warm_up("float16", lambda done, total: calls.append((done, total)))
    assert (len(calls), device.memory()["launches"]) == (total, before)
    model.warm_up("float32")
    model.warm_up(None)
    assert device.memory()["launches"] > before


@pytest.mark.usefixtures("nothing_left_over")
def test_a_warm_up_leaves_nothing_behind() -> None:
    random_model("dense").warm_up()


def test_one_layer_of_each_kind_is_run() -> None:
    assert warm_up.kinds_of_layers(random_model("dense")) == [0]
    assert warm_up.kinds_of_layers(random_model("window")) == [0, 3]
    assert warm_up.kinds_of_layers(random_model("hybrid")) == [0, 3]
    assert warm_up.kinds_of_layers(random_model("hybrid", mlp_only_layers=[0, 3])) == [0, 1, 3]


@pytest.mark.parametrize(
    "kind", ["dense", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("window", "hybrid"))]
)
def test_a_dry_step_gives_the_shapes_of_a_real_one(kind: str) -> None:
    model = random_model(kind)
    for rows in DEFAULT_ROWS:
        step = warm_up.DryStep(model, rows)
        x = model.embed(step.tokens)
        for layer in model._layers:
            x = layer(step, x, kv.models.base.Positions(step, model.device), None)
        assert x.shape == (rows, model.config.hidden_size)
        assert np.isfinite(np.asarray(x)).all()


@pytest.mark.ci
def test_warming_up_models_of_ones_own(device: Any) -> None:
    weight = kv.tensor(np.zeros((48, 32), np.float32)).astype("bfloat16")
    kv.ops.warm_up(2, 1, 40, 24, "float32", "bfloat16", "gelu", device)
    before = device.memory()["programs"]
    kv.ops.warm_up(2, 1, 40, 24, "float32", "bfloat16", "gelu", device)
    packed, pair = kv.ops.pack(weight), kv.ops.pack_pair(weight, weight)
    cache = kv.caches.CausalCache(1, 1, 40, 64, v_head_dim=24, dtype="float32")
    for rows in (1, 5, 30):
        x = np.zeros((rows, 32), np.float32)
        kv.ops.matmul(x, packed)
        kv.ops.matmul_gated(x, pair, "gelu")
    cache.start_forward(list(range(30)), [0] * 30)
    q, k, v = (np.zeros((30, heads, dim), np.float32) for heads, dim in ((2, 40), (1, 40), (1, 24)))
    cache.put(0, k, v)
    cache.attend(0, q)
    assert device.memory()["programs"] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2, 16), "heads: got 3 and 2 KV heads"),
        ((2, 2, 15), "head_dim: got 15"),
        ((2, 2, 16, 0), "v_head_dim"),
        ((2, 2, 16, None, "bfloat16"), "dtype"),
        ((2, 2, 16, None, "float16", "int32"), "weight_dtype: got int32"),
        ((2, 2, 16, None, "float16", "float32", "relu"), "activation"),
        ((2, 2, 16, None, "float16", "float32", None, "host"), "device"),
    ],
)
def test_wrong_sizes_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=message):
        kv.ops.warm_up(*arguments)


def test_wrong_sizes_of_latent_keys_are_named() -> None:
    with pytest.raises(kv.errors.ArgumentError, match="v_head_dim: got 8, allowed 0 with latent_dim"):
        kv.ops.warm_up(2, 1, 16, 8, latent_dim=8)
    with pytest.raises(kv.errors.ArgumentError, match="latent_dim: got 18, allowed up to 16"):
        kv.ops.warm_up(2, 1, 16, latent_dim=18)


def test_warming_up_latent_keys(device: Any) -> None:
    kv.ops.warm_up(6, 1, 40, dtype="float32", latent_dim=32, device=device)
    before = device.memory()["programs"]
    cache = kv.caches.CausalCache(1, 1, 40, 64, latent_dim=32, dtype="float32", rope={"dims": 8}, device=device)
    for sequence in range(2):
        cache.start_forward(list(range(30)), [sequence] * 30)
        cache.put(0, np.zeros((30, 1, 40), np.float32), np.zeros((30, 1, 0), np.float32))
        cache.attend(0, np.zeros((30, 6, 40), np.float32))
    cache.remove(0, 3, 5)
    assert device.memory()["programs"] == before
