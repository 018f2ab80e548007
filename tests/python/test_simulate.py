"""Replaying traces: against naive twins and an exhaustive search; what files, generators and reports promise."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

import kvtrie as kv
from kvtrie import _core
from kvtrie.cli import main
from kvtrie.replay import (
    POLICIES,
    Request,
    of_requests,
    read,
)
from processes import run_python

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = Path(__file__).with_name("trace_blocks.jsonl")  # 124 requests, blocks of 64 tokens
TOKENS = ROOT / "examples" / "trace.jsonl"
# Where Mooncake's conversation trace lies; it is no part of the repository.
PUBLISHED = os.environ.get("KVTRIE_TRACE", "")


def requests_of(*prompts: Sequence[int], namespace: str = "default") -> list[Request]:
    return [Request(float(i), np.array(p, np.int32), namespace=namespace) for i, p in enumerate(prompts)]


def random_requests(seed: int, count: int = 60, longest: int = 10, symbols: int = 3) -> list[Request]:
    draw = random.Random(seed)
    return requests_of(*([draw.randrange(symbols) for _ in range(draw.randint(1, longest))] for _ in range(count)))


# ---- twins -----------------------------------------------------------------------------------------------------------


class NaiveLru:
    """One entry per prefix. The least recently used leaf goes first, of equals the longest prefix.

    The tree gives the symbols of one edge one age, so where symbols follow each other without a branch, the latest use
    of any counts for all that follow.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.age: dict[tuple[int, ...], int] = {}
        self.children: dict[tuple[int, ...], int] = {}
        self.now = 0

    def serve(self, tokens: Sequence[int]) -> int:
        self.now += 1
        prefixes = [tuple(tokens[:end]) for end in range(1, len(tokens) + 1)][: self.capacity]
        known = sum(1 for _ in itertools.takewhile(self.age.__contains__, prefixes))
        live = set(prefixes[:known])
        while len(self.age) + len(prefixes) - known > self.capacity:
            leaves = [prefix for prefix in self.age if not self.children.get(prefix) and prefix not in live]
            self._drop(min(leaves, key=lambda prefix: (self.age[prefix], -len(prefix))), live)
        for prefix in prefixes:
            if prefix not in self.age:
                self.children[prefix[:-1]] = self.children.get(prefix[:-1], 0) + 1
            self.age[prefix] = self.now
        self._refresh(prefixes[-1])
        return known

    def _drop(self, prefix: tuple[int, ...], live: set[tuple[int, ...]]) -> None:
        del self.age[prefix]
        above = prefix[:-1]
        self.children[above] -= 1
        if above and above not in live:
            self._refresh(above)

    def _refresh(self, prefix: tuple[int, ...]) -> None:
        while self.children.get(prefix) == 1:
            below = next(each for each in self.age if len(each) == len(prefix) + 1 and each[:-1] == prefix)
            self.age[below] = max(self.age[below], self.age[prefix])
            prefix = below


def test_lru_is_the_naive_twin_request_by_request() -> None:
    for seed in range(25):
        capacity = 3 + seed
        replay, twin = _core.Replay(capacity, whole=True), NaiveLru(capacity)
        for number, request in enumerate(random_requests(seed)):
            _, _, reused = replay.serve(request.tokens, time=request.time)
            assert reused == twin.serve(request.tokens.tolist()), (seed, number)
        assert replay.check() == []


def test_figures_of_the_committed_trace() -> None:
    report = kv.replay.simulate(BLOCKS, ["50b", "100b", "200b", "400b"], ["lru", "optimum"], block=64)
    assert report.requests == 124
    assert [row.requested for row in report.rows] == [210880] * 8
    blocks = [[row.reused // 64 for row in report.rows if row.policy == policy] for policy in ("lru", "optimum")]
    assert blocks == FIGURES
    for capacity, wanted in zip((50, 100, 200, 400), FIGURES[0]):
        twin = NaiveLru(capacity)
        assert sum(twin.serve(request.tokens.tolist()) for request in read(BLOCKS, 64)) == wanted


FIGURES = [[601, 984, 1294, 1808], [1049, 1443, 1866, 2136]]


def best_possible(requests: Iterable[Request], capacity: int) -> int:
    """By trying every set of prefixes that may be kept after each request."""
    paths = [[tuple(r.tokens[:end].tolist()) for end in range(1, len(r.tokens) + 1)] for r in requests]
    states: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}
    for path in paths:
        after: dict[frozenset[tuple[int, ...]], int] = {}
        for kept, hits in states.items():
            found = hits + sum(1 for _ in itertools.takewhile(kept.__contains__, path))
            have = sorted(kept | set(path))
            for choice in itertools.combinations(have, min(capacity, len(have))):
                state = frozenset(choice)
                after[state] = max(after.get(state, -1), found)
        states = after
    return max(states.values())


def test_the_optimum_is_the_best_of_all_choices() -> None:
    gains = 0
    for seed in range(40):
        requests = random_requests(seed, count=7, longest=3, symbols=2)
        for capacity in (1, 2, 3, 4):
            trace = of_requests(requests, whole=True)
            found = kv.replay.simulate(trace, capacity, ["optimum", "lru"])
            assert found.rows[0].reused == best_possible(requests, capacity), (seed, capacity)
            gains += found.rows[0].reused > found.rows[1].reused
    assert gains > 10


@pytest.mark.parametrize("whole", [False, True])
def test_no_policy_beats_the_optimum_which_grows_with_capacity(whole: bool) -> None:
    for seed in range(12):
        trace = of_requests(random_requests(seed, 80, 12, 2 + seed % 3), whole=whole)
        report = kv.replay.simulate(trace, [2, 5, 9, 20, 60, 1000], "all")
        best = [report.row("optimum", capacity).reused for capacity in report.capacities]
        assert best == sorted(best)
        for row in report.rows:
            assert row.reused <= report.row("optimum", row.capacity).reused, (seed, row)
        everything = {report.row(policy, 1000).reused for policy in POLICIES}
        assert len(everything) == 1, "with room for all, no policy matters"


def test_the_optimum_keeps_what_was_generated_when_it_comes_back() -> None:
    turn = Request(0.0, np.arange(10, dtype=np.int32), np.arange(10, 15, dtype=np.int32))
    later = Request(1.0, np.arange(20, dtype=np.int32))
    report = kv.replay.simulate([turn, later], [15, 12, 100], "all")
    for policy in POLICIES:
        assert report.row(policy, 100).reused == 15
    assert report.row("optimum", 12).reused == 12


def test_a_block_as_one_symbol_or_as_its_tokens_is_the_same() -> None:
    by_block = kv.replay.simulate(BLOCKS, ["60b", "300b"], ["lru", "optimum"], block=64)
    by_token = kv.replay.simulate(BLOCKS, [60 * 64, 300 * 64], ["lru", "optimum"], block=64, expand=True)
    for a, b in zip(by_block.rows, by_token.rows):
        assert (a.requested, a.reused) == (b.requested, b.reused)


@pytest.mark.skipif(not Path(PUBLISHED).is_file(), reason="KVTRIE_TRACE names no file")
def test_hit_rates_of_the_published_trace() -> None:
    capacities = ["2000b", "5000b", "10000b", "20000b", "50000b"]
    report = kv.replay.simulate(PUBLISHED, capacities, ["lru", "optimum"])
    for policy, known in {
        "lru": (0.054, 0.112, 0.212, 0.288, 0.355),
        "optimum": (0.255, 0.341, 0.366, 0.366, 0.366),
    }.items():
        found = [report.row(policy, capacity).hit_rate for capacity in report.capacities]
        assert found == pytest.approx(known, abs=0.005)


# ---- the replay ------------------------------------------------------------------------------------------------------


def test_the_same_call_gives_the_same_bytes() -> None:
    def once() -> str:
        return kv.replay.simulate(TOKENS, ["5k", "20k"], "all").to_json()

    first = once()
    assert once() == first
    assert "seconds" not in first
    rows = json.loads(first)["rows"]
    assert [(row["policy"], row["capacity"]) for row in rows] == list(itertools.product(POLICIES, (5000, 20000)))
    assert json.loads(kv.replay.simulate(TOKENS, 5000).to_json(seconds=True))["rows"][0]["seconds"] > 0


def test_namespaces_share_nothing() -> None:
    prompts = ([1, 2, 3, 4], [1, 2, 3, 4])
    one = kv.replay.simulate(requests_of(*prompts), 100).rows[0]
    apart = [*requests_of(prompts[0], namespace="a"), *requests_of(prompts[1], namespace="b")]
    report = kv.replay.simulate(apart, 100, "all")
    assert one.reused == 3
    assert [row.reused for row in report.rows] == [0] * len(POLICIES)


def test_a_request_longer_than_the_capacity_counts_in_full() -> None:
    report = kv.replay.simulate(requests_of(range(20), range(20)), 8, ["lru", "optimum"])
    assert [(row.requested, row.reused) for row in report.rows] == [(40, 7), (40, 8)]


def test_other_kinds_of_state() -> None:
    dense = kv.replay.simulate(TOKENS, "60k").rows[0]
    hybrid = kv.replay.simulate(TOKENS, "60k", slots=400, checkpoint_every=64).rows[0]
    few = kv.replay.simulate(TOKENS, "60k", slots=6, checkpoint_every=64).rows[0]
    window = kv.replay.simulate(TOKENS, "60k", window=256, window_capacity=60_000).rows[0]
    assert 0 < few.reused < hybrid.reused < dense.reused
    assert 0 < window.reused <= dense.reused
    with pytest.raises(kv.errors.ArgumentError, match=r"slots.*expand"):
        kv.replay.simulate(BLOCKS, "50b", block=64, slots=4)


def test_a_host_tier_holds_what_the_device_evicts() -> None:
    alone = kv.replay.simulate(TOKENS, 5000).rows[0]
    helped = kv.replay.simulate(TOKENS, 5000, host_capacity=100_000).rows[0]
    unbounded = kv.replay.simulate(TOKENS, 200_000).rows[0]
    assert alone.reused < helped.reused <= unbounded.reused


def test_capacities_are_sizes_in_tokens() -> None:
    report = kv.replay.simulate(BLOCKS, [6400, "6.4k", "100b", np.int64(6463), "6.25Ki"], block=64)
    assert report.capacities == [6400]
    assert kv.replay.simulate(TOKENS, "0.01M").capacities == [10000]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": []}, "capacity"),
        ({"capacity": "12 parsecs"}, "capacity"),
        ({"capacity": -5}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"capacity": 63}, "capacity"),
        ({"capacity": 2**40}, "capacity"),
        ({"capacity": 6400, "policy": "clairvoyant"}, "policy"),
        ({"capacity": 6400, "policy": []}, "policy"),
        ({"capacity": 6400, "block": 0}, "block"),
        ({"trace": 3, "capacity": 6400}, "trace"),
        ({"trace": [[1, 2]], "capacity": 6400}, "trace"),
        ({"trace": "no/such/file", "capacity": 6400}, "no/such/file"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=names):
        kv.replay.simulate(**{"trace": BLOCKS, "block": 64, **arguments})


def test_progress_is_told() -> None:
    told: list[tuple[int, Optional[int]]] = []
    kv.replay.simulate(BLOCKS, "50b", block=64, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 124) for done in range(1, 125)]


def test_importing_the_parts_leaves_the_function_in_place() -> None:
    part = importlib.import_module("kvtrie.replay.draws")
    assert callable(kv.replay.simulate) and part.Draws(1).bits() == part.Draws(1).bits()


# ---- reports and the command line ------------------------------------------------------------------------------------


def test_a_report_as_text_html_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = kv.replay.simulate(TOKENS, ["5k", "20k"], ["lru", "optimum"])
    lines = report.table().splitlines()
    assert lines[0] == "trace.jsonl: 55 requests, 78.8k tokens; reused / requested"
    assert lines[1].split() == ["capacity", "lru", "optimum"]
    assert [line.split()[0] for line in lines[2:]] == ["5k", "20k"]
    assert lines[2].split()[1] == f"{report.row('lru', 5000).hit_rate:.4f}"
    assert report._repr_html_().count("<tr>") == 3
    with pytest.raises(kv.errors.ArgumentError, match="policy, capacity"):
        report.row("cost", 5000)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(kv.errors.NotSupportedError, match="pip install matplotlib"):
            report.plot(tmp_path / "x.svg")
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "a.svg")
    report.plot(tmp_path / "b.svg")
    drawn = (tmp_path / "a.svg").read_bytes()
    assert drawn == (tmp_path / "b.svg").read_bytes()
    assert b"hit rate" in drawn and b"optimum" in drawn and b"20k" in drawn
    with pytest.raises(kv.errors.ArgumentError, match="path"):
        report.plot(tmp_path / "no" / "folder.svg")


def command(*arguments: str) -> Any:
    return run_python("-m", "kvtrie", "simulate", *arguments)


def test_the_command_replays_and_writes(tmp_path: Path) -> None:
    done = command(str(TOKENS), "--capacity", "5k,20k", "--policy", "lru,optimum", "--json", str(tmp_path / "r.json"))
    assert (done.returncode, done.stderr) == (0, "")
    report = kv.replay.simulate(TOKENS, ["5k", "20k"], ["lru", "optimum"])
    assert done.stdout == report.table() + "\n"
    assert (tmp_path / "r.json").read_text() == report.to_json()


def test_the_command_makes_traces(tmp_path: Path) -> None:
    made = ["--generate", "sessions", "--seed", "2", "--set", "sessions=5", "--set", "first=90:300:900"]
    path = tmp_path / "new.jsonl"
    done = command(str(path), *made)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{path}: ") and "seed=2, sessions=5, first=90:300:900" in done.stdout
    refused = command(str(path), *made)
    assert (refused.returncode, refused.stdout) == (1, "") and "--force" in refused.stderr
    out = io.StringIO()
    both = [str(path), "--force", "--format", "mooncake", "--block", "32", *made, "--capacity", "50b", "--json", "-"]
    assert main(["simulate", *both], out) == 0
    first, rest = out.getvalue().split("\n", 1)
    assert first.startswith(str(path)) and json.loads(rest)["symbol_tokens"] == 32


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "TRACE or --generate"),
        ([str(TOKENS)], 2, "--capacity"),
        ([str(TOKENS), "--capacity", "much"], 1, "capacity: got 'much'"),
        ([str(TOKENS), "--capacity", "5k", "--policy", "best"], 1, "policy: got 'best'"),
        (["missing.jsonl", "--capacity", "5k"], 1, "missing.jsonl"),
        (["--generate", "chaos", "--capacity", "5k"], 2, "--generate"),
        (["--generate", "scan", "--set", "sweep", "--capacity", "5k"], 2, "--set"),
        (["--generate", "scan", "--set", "sweep=-1", "--capacity", "5k"], 1, "sweep: got -1"),
        ([str(TOKENS), "--capacity", "5k", "--json", "no/such/folder/r.json"], 1, "--json"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["simulate", *arguments], io.StringIO())
    except SystemExit as stop:
        found = int(stop.code or 0)
    error = capsys.readouterr().err
    assert found == code and says in error and "Traceback" not in error
