"""What random checkpoints compute after their cells went to host memory or a folder and back, in batches, and replayed.

One variant for each kind of state that families of checkpoint_variants.py have. Bits are those of a cold run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from checkpoint_variants import VARIANTS
from config_sweep import Case, build, save, tokens

NAMES = (
    pytest.param("gemma4_text-readers"),
    pytest.param("gemma4_text-keys-as-values", marks=pytest.mark.ci),
    pytest.param("gemma3n_text-streams", marks=pytest.mark.ci),
    pytest.param("gpt_oss-yarn", marks=pytest.mark.ci),
    pytest.param("deepseek_v2-lite"),
    pytest.param("deepseek_v3-yarn", marks=pytest.mark.ci),
    pytest.param("glm4_moe_lite-plain", marks=pytest.mark.ci),
    pytest.param("deepseek_v32-yarn", marks=pytest.mark.ci),
    pytest.param("glm_moe_dsa-yarn", marks=pytest.mark.ci),
    pytest.param("qwen4_exp_text-yarn", marks=pytest.mark.ci),
    pytest.param("qwen4_exp_text-ngrams"),
)
pytestmark = pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")


def model_of(name: str, folder: Path) -> Any:
    variant = VARIANTS[name]
    case = Case(variant.family, variant.changes)
    save(build(case), case.file(), folder)
    return kv.models.load(folder, dtype="float32")


def caches(model: Any, capacity: int = 128) -> Any:
    return model.caches(capacity=capacity, dtype="float32", warm_up=False)


def rows(model: Any, session: Any, chunk: int = 64) -> Any:
    return np.concatenate([np.array(model(step, all_rows=True)) for step in session.prefill(chunk=chunk)])


def cold(model: Any, text: list[int]) -> Any:
    with kv.PrefixCache(caches(model)) as cache, cache.begin(text) as session:
        return rows(model, session)


@pytest.mark.parametrize("name", NAMES)
def test_after_a_restart(name: str, tmp_path: Path) -> None:
    model, text = model_of(name, tmp_path / "model"), tokens().tolist()
    with kv.PrefixCache(caches(model), fingerprint=model.fingerprint) as cache:
        with cache.begin(text[:30]) as session:
            rows(model, session, 7)
        cache.save(tmp_path / "saved")
    with kv.PrefixCache.open(tmp_path / "saved", caches(model), fingerprint=model.fingerprint) as cache:
        for whole in (text, [*text[:30], 3, 4, 5]):
            with cache.begin(whole) as session:
                assert session.reused == 30
                np.testing.assert_array_equal(rows(model, session), cold(model, whole)[30:])


@pytest.mark.parametrize("name", NAMES)
def test_after_host_memory(name: str, tmp_path: Path) -> None:
    """Of two conversations the device holds one at a time."""
    model, text = model_of(name, tmp_path), tokens().tolist()
    others = [each + 1 for each in text]
    with kv.PrefixCache(caches(model, capacity=48), host_bytes="4MiB") as cache:
        for whole in (text, others, text, others):
            with cache.begin(whole) as session:
                got = rows(model, session, 9)
                np.testing.assert_array_equal(got, cold(model, whole)[session.reused :])
        assert cache.stats()["reused_tokens"] >= len(text)


@pytest.mark.parametrize("name", NAMES)
def test_two_branches_in_a_batch_and_replayed_steps(name: str, tmp_path: Path) -> None:
    """Steps of one token for each of two sessions, recorded, replayed and launched one by one."""
    model, text = model_of(name, tmp_path), tokens().tolist()
    ends = ([5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16])
    wanted = [cold(model, [*text, *end])[len(text) :] for end in ends]
    for replays in (True, False):
        model.replays = replays
        with kv.PrefixCache(caches(model, 256)) as cache:
            with cache.begin(text) as session:
                rows(model, session)
            sessions = [cache.begin([*text, end[0]]) for end in ends]
            got = []
            for index in range(len(ends[0])):
                got.append(np.array(model(cache.batch(sessions))))
                if index + 1 < len(ends[0]):
                    for session, end in zip(sessions, ends):
                        session.append([end[index + 1]])
            for session in sessions:
                session.close()
        np.testing.assert_array_equal(np.stack(got, axis=1), wanted)
