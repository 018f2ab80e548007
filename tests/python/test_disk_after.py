"""What is written behind only when it is asked for again (``disk_after``): one-off prompts never reach the disk."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from disk_worker import KINDS, go_on, make, names_in, words
from processes import run_python, wait_for

FIRST, SECOND = words(1, 150), words(2, 40)
TEXT_BYTES = 150 * 128  # K and V of 150 tokens of the dense model


def settle(cache: kv.PrefixCache) -> int:
    """Waits for what is on its way; how many files were written. No flush: that would write everything."""
    wait_for(lambda: cache.stats()["pending_writes"] == 0)
    assert cache.check() == []
    writes = cache.stats()["disk"]["writes"]
    assert isinstance(writes, int)
    return writes


def known_after_restart(folder: Path, kind: str, tokens: list[int]) -> int:
    cache, _ = make(kind, disk=folder)
    with cache:
        return cache.plan(tokens).reusable


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_session_asked_for_is_written_for_the_second(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    cache, model = make(kind, disk=folder, disk_after=2)
    assert cache.disk_after == 2
    go_on(cache, model, FIRST)
    cache.page_out(FIRST)  # to host memory
    assert settle(cache) == 0
    assert names_in(folder) == []
    with cache.begin([*FIRST, 7]) as session:  # computes nothing
        assert session.reused == 150
        assert settle(cache) == 0
    assert settle(cache) > 0
    go_on(cache, model, FIRST + SECOND)
    settle(cache)
    cache.close()
    assert known_after_restart(folder, kind, FIRST + SECOND) == 150  # and not what the last one added


@pytest.mark.parametrize("publish", [True, False])
def test_the_first_token_waits_for_no_copy(publish: bool, tmp_path: Path) -> None:
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2)
    go_on(cache, model, FIRST)
    with cache.begin(FIRST + SECOND, publish=publish) as session:
        for step in session.prefill(chunk=16):
            model(step)
            assert cache.stats()["host_bytes"] == 0
        session.append([7])
        model(session.decode())
        assert settle(cache) > 0
    cache.close()
    assert known_after_restart(tmp_path / "disk", "dense", FIRST + SECOND) == 150


def test_by_default_what_a_session_leaves_is_written(tmp_path: Path) -> None:
    cache, model = make("dense", disk=tmp_path / "disk")
    assert cache.disk_after == 1
    go_on(cache, model, FIRST)
    assert settle(cache) > 0
    cache.close()


def test_three_have_to_ask(tmp_path: Path) -> None:
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=3)
    for _ in range(2):
        go_on(cache, model, FIRST)
        assert settle(cache) == 0
    go_on(cache, model, FIRST)
    assert settle(cache) > 0
    cache.close()
    assert known_after_restart(tmp_path / "disk", "dense", [*FIRST, 7]) == 150


@pytest.mark.parametrize("how", ["flush", "page_out", "page_out_bytes", "pin", "restore"])
def test_what_is_asked_for_by_name_is_written(how: str, tmp_path: Path) -> None:
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2)
    with cache.begin(FIRST) as session:
        for step in session.prefill(chunk=64):
            model(step)
    if how == "flush":
        assert cache.flush()
    elif how == "page_out":
        assert cache.page_out(FIRST, to="disk") > 0
        assert cache.stats()["host_bytes"] == 0
    elif how == "page_out_bytes":
        assert cache.page_out(nbytes=TEXT_BYTES, to="disk") == TEXT_BYTES
    elif how == "pin":
        assert cache.pin(FIRST) == 150
    elif how == "restore":
        assert cache.restore(FIRST) == 150
    settle(cache)
    cache.close()
    assert known_after_restart(tmp_path / "disk", "dense", [*FIRST, 7]) == 150


def test_a_checkpoint_stays_in_memory(tmp_path: Path) -> None:
    """A server sets one in each prompt, so it asks for nothing."""
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2, host_bytes=2 * TEXT_BYTES)
    with cache.begin(FIRST) as session:
        for step in session.prefill(chunk=64):
            model(step)
        session.checkpoint()
    cache.page_out(FIRST)
    for seed in range(40, 44):
        text = words(seed, 150)
        go_on(cache, model, text)
        cache.page_out(text)
    assert settle(cache) == 0
    assert cache.plan([*FIRST, 7]).reusable == 150
    cache.close()


def test_a_branch_is_no_second_session(tmp_path: Path) -> None:
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2)
    with cache.begin(FIRST) as session:
        for step in session.prefill(chunk=64):
            model(step)
        with session.branch() as branch:
            branch.append(SECOND)
            for step in branch.prefill(chunk=64):
                model(step)
    assert settle(cache) == 0
    cache.close()


def test_save_writes_everything(tmp_path: Path) -> None:
    """Also where host memory is full of what is in no file."""
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2, host_bytes=4 * TEXT_BYTES)
    texts = [words(seed, 150) for seed in range(10, 16)]
    for text in texts[:4]:
        go_on(cache, model, text)
        cache.page_out(text)
    for text in texts[4:]:
        go_on(cache, model, text)
    assert settle(cache) == 0
    cache.save(tmp_path / "saved")
    cache.close()
    again, _ = make("dense", disk=tmp_path / "saved")
    assert [again.plan([*text, 7]).reusable for text in texts] == [150] * 6
    again.close()


def test_where_memory_is_short_what_is_held_back_goes(tmp_path: Path) -> None:
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2, host_bytes=3 * TEXT_BYTES)
    texts = [words(seed, 150) for seed in range(20, 28)]
    for text in texts:
        go_on(cache, model, text)
        assert cache.page_out(text) == TEXT_BYTES
    assert settle(cache) == 0
    assert [cache.plan([*text, 7]).reusable for text in texts] == [0] * 5 + [150] * 3
    assert cache.stats()["evicted_tokens"] == 5 * 150

    go_on(cache, model, FIRST)  # on the device, while memory is full
    go_on(cache, model, FIRST)
    assert settle(cache) > 0
    assert cache.plan([*texts[-1], 7]).reusable == 150  # the oldest went for it
    assert cache.plan([*texts[5], 7]).reusable == 0
    cache.close()
    assert known_after_restart(tmp_path / "disk", "dense", [*FIRST, 7]) == 150


def test_flush_where_memory_is_full_of_what_is_in_no_file(tmp_path: Path) -> None:
    """The oldest in memory hangs below what has no copy yet: what else is written first makes room for that."""
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2, host_bytes=5 * TEXT_BYTES // 2)
    texts = [words(seed, 150) for seed in (30, 31, 32)]
    go_on(cache, model, texts[0])
    assert cache.page_out(nbytes=TEXT_BYTES // 2) == TEXT_BYTES // 2
    for text in texts[1:]:
        go_on(cache, model, text)
        assert cache.page_out(text) == TEXT_BYTES
    assert cache.stats()["host_bytes"] == cache.host_bytes
    assert cache.flush()
    cache.close()
    again, _ = make("dense", disk=tmp_path / "disk")
    assert [again.plan([*text, 7]).reusable for text in texts] == [150] * 3
    again.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from disk_worker import go_on, make
from test_disk_after import FIRST, SECOND, settle

cache, model = make("dense", disk=sys.argv[1], disk_after=2)
go_on(cache, model, FIRST)
go_on(cache, model, FIRST + SECOND)
settle(cache)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_turns_and_a_kill(tmp_path: Path) -> None:
    """What the last turn added is computed again, and nothing else."""
    done = run_python("-c", KILLED, tmp_path / "disk")
    assert done.returncode == -signal.SIGKILL, done.stderr
    cache, model = make("dense", disk=tmp_path / "disk", disk_after=2)
    assert go_on(cache, model, FIRST + SECOND + [7]).reused == 150
    cache.close()


@pytest.mark.parametrize("wrong", [0, -1, 256, 1 << 40])
def test_numbers_out_of_range_are_refused(wrong: int) -> None:
    with pytest.raises(
        kv.errors.ArgumentError, match=rf"^\[PrefixCache\] disk_after: got {wrong} \(int\), allowed 1 to 255$"
    ):
        make("dense", disk_after=wrong)


@pytest.mark.parametrize("wrong", ["x", True, 1.5, None])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"^\[PrefixCache\] disk_after: got .*, allowed an integer"):
        make("dense", disk_after=wrong)
