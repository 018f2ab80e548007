"""Namespaces and weights share nothing, in any tier; each test has a twin: the same tenant still hits.

The models write K, V and states that depend on the namespace and check all they can read (kinds_fakes.py), so a byte
of somebody else is recognised. The shared store has its own tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import run
from kinds_fakes import KindsModel, make_caches, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")

TEXT = words(5, 60)
# Names that are easily taken for each other: by joining them with what follows, by cutting, by normalising.
LOOKALIKES = [
    ("org_1", "org_12345"),
    ("", "default"),
    ("", "\0"),
    ("a", "a\0"),
    ("a\0b", "a"),
    ("a\nb", "a"),
    ("a", "a "),
    ("a", "A"),
    ("\u00e9", "e\u0301"),
    ("\u212b", "\u00c5"),
    ("x" * 4096, "x" * 4095),
    ("x" * 4096, "x" * 4095 + "y"),
    ("../a", "a"),
]
TIERS = ("device", "host", "disk")


def open_cache(folder: Path, kind: str = "dense", fingerprint: str = "w", **options: Any) -> tuple[Any, KindsModel]:
    caches = make_caches(kind, 400, slots=40, window=16, chunk=16, **options)
    cache = kv.PrefixCache(caches, fingerprint=fingerprint, host_bytes="4MiB", disk=folder, checkpoint_every=16)
    return cache, KindsModel(caches)


def send_to(cache: Any, tier: str, namespace: str) -> None:
    if tier != "device":
        cache.page_out(TEXT, to=tier, namespace=namespace)


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[pytest.param("dense", marks=pytest.mark.ci), "all"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_lookalikes_share_nothing(tier: str, kind: str, tmp_path: Path) -> None:
    for index, (mine, other) in enumerate(LOOKALIKES):
        cache, model = open_cache(tmp_path / str(index), kind)
        run(cache, TEXT, model, mine)
        send_to(cache, tier, mine)
        assert cache.plan(TEXT, other).matched == 0
        assert cache.restore(TEXT, other) == 0
        assert cache.pin(TEXT, other) == cache.evict(TEXT, namespace=other) == 0
        assert run(cache, TEXT, model, other).matched == 0
        twin = cache.plan(TEXT, mine)
        assert (twin.reusable, twin.tier) == (len(TEXT) - 1, tier), "the same tenant still hits"
        assert run(cache, TEXT, model, mine).reused == len(TEXT) - 1
        assert cache.check() == []
        cache.close()


def test_tokens_do_not_run_into_the_name(tier: str, tmp_path: Path) -> None:
    """The name "org_1" with the tokens 2345, ... is not "org_12345" with the rest."""
    cache, model = open_cache(tmp_path / "disk")
    text = [23, 45, *TEXT[2:]]
    run(cache, text, model, "org_1")
    if tier != "device":
        cache.page_out(text, to=tier, namespace="org_1")
    for name, tokens in [("org_12345", text[2:]), ("org_123", text[1:]), ("org_1", text[1:]), ("org_1\x17", text[1:])]:
        assert cache.plan(tokens, name).matched == 0
    assert cache.plan(text, "org_1").reusable == len(text) - 1
    cache.close()


def test_lookalikes_after_a_restart(kind: str, tmp_path: Path) -> None:
    for index, (mine, other) in enumerate(LOOKALIKES):
        cache, model = open_cache(tmp_path / str(index), kind)
        run(cache, TEXT, model, mine)
        assert cache.flush()
        cache.close()
        again, model = open_cache(tmp_path / str(index), kind)
        assert again.plan(TEXT, other).matched == 0
        assert run(again, TEXT, model, other).reused == 0
        assert run(again, TEXT, model, mine).reused == len(TEXT) - 1
        assert {node.namespace for node in again.nodes()} == {mine, other}
        again.close()


def test_what_one_sees_does_not_depend_on_the_other(tier: str, kind: str, tmp_path: Path) -> None:
    """With room for both: the plan, the report and the nodes of a namespace are what they are without the other."""

    def seen(with_other: bool) -> Any:
        cache, model = open_cache(tmp_path / f"{with_other}", kind)
        if with_other:
            run(cache, [*TEXT, 1, 2], model, "other")
            send_to(cache, tier, "other")
        run(cache, TEXT, model, "mine")
        send_to(cache, tier, "mine")
        if with_other:
            run(cache, TEXT[:30], model, "other")
        plan = cache.plan([*TEXT[:40], 96, 95], "mine")
        session = run(cache, [*TEXT[:40], 96, 95], model, "mine")
        own = [node for node in cache.nodes() if node.namespace == "mine"]
        nodes = [
            (node.start, node.end, list(node.tokens), node.tier, node.point, node.live, node.pinned) for node in own
        ]
        cache.close()
        report = (session.matched, session.reused, session.tier, session.bytes_moved, str(session.reason))
        return (plan.matched, plan.reusable, plan.tier, plan.bytes_moved, str(plan.reason)), report, nodes

    assert seen(True) == seen(False)


# ---- weights ---------------------------------------------------------------------------------------------------------


def snapshots(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_other_weights_find_nothing_on_the_disk(kind: str, tmp_path: Path) -> None:
    cache, model = open_cache(tmp_path / "disk", kind, "weights A")
    run(cache, TEXT, model, "a")
    assert cache.flush()
    cache.close()
    for fingerprint in ("weights B", "weights A\0", "weights", "WEIGHTS A"):
        other, model = open_cache(tmp_path / "disk", kind, fingerprint)
        assert other.plan(TEXT, "a").matched == 0
        assert other.stats()["disk"]["refused"]["fingerprint"] == len(snapshots(tmp_path / "disk"))
        other.close()
    twin, model = open_cache(tmp_path / "disk", kind, "weights A")
    assert run(twin, TEXT, model, "a").reused == len(TEXT) - 1
    twin.close()


def test_files_copied_into_the_folder_of_other_weights(kind: str, tmp_path: Path) -> None:
    for name in ("A", "B"):
        cache, model = open_cache(tmp_path / name, kind, f"weights {name}")
        run(cache, TEXT if name == "A" else words(9, 60), model, "a")
        assert cache.flush()
        cache.close()
    foreign, own = snapshots(tmp_path / "A"), snapshots(tmp_path / "B")
    for path in foreign:
        shutil.copy(path, tmp_path / "B" / path.name)
    cache, model = open_cache(tmp_path / "B", kind, "weights B")
    assert cache.stats()["disk"]["refused"] == {"fingerprint": len(foreign)}
    assert cache.plan(TEXT, "a").matched == 0
    assert run(cache, words(9, 60), model, "a").reused == 59
    cache.close()
    for path, target in zip(foreign, own):  # under names that are right there
        shutil.copy(path, target)
    cache, model = open_cache(tmp_path / "B", kind, "weights B")
    assert cache.plan(TEXT, "a").matched == 0
    assert cache.check() == []
    cache.close()


def test_files_under_the_names_of_another_namespace(kind: str, tmp_path: Path) -> None:
    """Two namespaces with the same tokens; each file of one is put in the place of one of the other's."""
    folders = {}
    for name in "ab":
        folders[name] = tmp_path / name
        cache, model = open_cache(folders[name], kind)
        run(cache, TEXT, model, name)
        assert cache.flush()
        cache.close()
    theirs, mine = snapshots(folders["a"]), snapshots(folders["b"])
    assert len(theirs) == len(mine) > 0
    assert not {path.name for path in theirs} & {path.name for path in mine}, "the namespace is part of the name"
    for path, target in zip(theirs, mine):
        shutil.copy(path, target)
    cache, model = open_cache(folders["b"], kind)
    assert (cache.plan(TEXT, "a").matched, cache.plan(TEXT, "b").matched) == (0, 0)
    assert cache.stats()["disk"]["refused"] == {"tokens": len(mine)}
    run(cache, TEXT, model, "b")
    cache.close()
    for path in theirs:  # the twin: under its own name it is what it says it is, in any folder
        shutil.copy(path, folders["b"] / path.name)
    cache, model = open_cache(folders["b"], kind)
    assert run(cache, TEXT, model, "a").reused == len(TEXT) - 1
    cache.close()


# ---- memory that changes hands ---------------------------------------------------------------------------------------


def test_rows_that_were_not_put_cannot_be_read(place: Any) -> None:
    layers = kv.caches.CausalCache([0, 1], 1, 4, 40, dtype="float32", device=place)
    cache = kv.PrefixCache(layers, growth=0)
    rows = np.ones((40, 1, 4), np.float32)
    with cache.begin(list(range(40)), "a") as session:
        for step in session.prefill():
            for layer in (0, 1):
                step.put(layer, rows, rows)
    with cache.begin(list(range(40)), "b") as session:
        for step in session.prefill():
            with pytest.raises(kv.Error, match="was not put"):
                step.get(0)
            with pytest.raises(kv.Error, match="was not put"):
                step.attend(0, rows)
            step.put(0, 0 * rows, 0 * rows)
            assert not np.asarray(step.get(0)[0]).any()
            with pytest.raises(kv.Error, match="was not put"):
                step.get(1)
            step.put(1, 0 * rows, 0 * rows)
    assert cache.check() == []


def test_tenants_that_take_turns_in_a_small_pool(place: Any, kind: str) -> None:
    """Cells and slots change hands with every prompt: everybody reads their own bytes."""
    caches = make_caches(kind, 90, slots=12, window=16, chunk=16, device=place)
    cache, model = kv.PrefixCache(caches, host_bytes="64KiB", checkpoint_every=16, growth=8), KindsModel(caches)
    for turn in range(12):
        for name in ("a", "b", "c"):
            run(cache, [*TEXT[: 40 + turn], turn], model, name, chunk=7)
    assert cache.check() == []
