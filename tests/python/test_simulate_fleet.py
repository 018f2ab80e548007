"""Simulated fleets beside kv.replay.simulate, a naive queue and a naive store; what they promise when replicas fail."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie import _core
from kvtrie.cli import main
from kvtrie.ray.scale.routing import Prompt
from kvtrie.ray.scale.shortlist import Index, Shortlist
from kvtrie.replay import FleetOptions, Request, Workload, read, simulate_fleet, workload
from kvtrie.replay.fleet_options import ROUTINGS
from kvtrie.replay.fleet_replica import Memory
from kvtrie.replay.fleet_run import FleetRun
from kvtrie.replay.fleet_store import PATIENCE, FleetStore
from kvtrie.replay.fleet_trace import Cells, adapted, arrival

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = Path(__file__).with_name("trace_blocks.jsonl")  # 124 requests, blocks of 64 tokens
TOKENS = ROOT / "examples" / "trace.jsonl"


def chats() -> Workload:
    return workload("sessions", seed=3, sessions=60, more=700, gap=1500)


# ---- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "slru", "cost"])
def test_one_replica_counts_what_simulate_counts(policy: str) -> None:
    options = FleetOptions(policy=policy, rate=1e9, decode=0.0)
    for trace, capacity in ((BLOCKS, "50b"), (BLOCKS, "200b"), (TOKENS, "5k"), (TOKENS, "20k")):
        one = kv.replay.simulate(trace, capacity, policy, block=64).rows[0]
        for routing in ("random", "affinity"):
            row = simulate_fleet(trace, 1, capacity, routing, options, block=64).rows[0]
            assert (row.requested, row.reused, row.fetched) == (one.requested, one.reused, 0)
            assert row.computed == row.bounds.one_cache == one.requested - one.reused


def test_the_same_call_gives_the_same_bytes() -> None:
    options = FleetOptions(routers=3, candidates=4, fail_every=40.0, fail_for=20.0, load=4.0, rate=2000.0)

    def once() -> str:
        return simulate_fleet(TOKENS, [2, 7], "5k", [*ROUTINGS, "random+store"], options).to_json()

    first = once()
    assert once() == first
    assert simulate_fleet(TOKENS, 7, "5k", "random", replace(options, seed=1)).to_json() not in first
    rows = json.loads(first)["rows"]
    assert [row["replicas"] for row in rows] == [2] * 6 + [7] * 6
    assert all(row["reused"] + row["fetched"] + row["computed"] == row["requested"] for row in rows)


def test_affinity_computes_hardly_more_than_one_large_cache() -> None:
    report = simulate_fleet(chats(), 6, "4M", "all", FleetOptions(rate=20_000.0))
    computed = {row.routing: row.computed for row in report.rows}
    one = report.rows[0].bounds.one_cache
    assert one <= computed["affinity"] <= 1.1 * one
    assert computed["affinity+store"] <= 1.1 * one
    assert min(computed[each] for each in ("random", "round_robin", "two_choices")) > 1.5 * one


def test_a_fast_store_makes_up_for_a_careless_router() -> None:
    options = FleetOptions(rate=5000.0, store_bandwidth=1e13)
    report = simulate_fleet(chats(), 6, "4M", ["random", "random+store"], options)
    alone, shared = report.row("random", 6), report.row("random+store", 6)
    assert shared.computed < 0.6 * alone.computed and shared.fetched > 0
    assert shared.store_out >= shared.fetched * options.bytes_per_token
    assert alone.store_in == alone.store_out == 0
    slow = simulate_fleet(chats(), 6, "4M", "random+store", replace(options, store_bandwidth=1e6)).rows[0]
    assert slow.fetched == 0 and slow.unsent > 0


def test_a_shortlist_costs_little() -> None:
    options = FleetOptions(rate=20_000.0)
    rows = [
        simulate_fleet(chats(), 30, "1M", "affinity", replace(options, candidates=count)).rows[0] for count in (0, 6)
    ]
    assert rows[1].computed <= 1.05 * rows[0].computed


def test_a_busy_replica_keeps_its_prompts_where_computing_weighs_more() -> None:
    """Else a fleet that has too much to do makes itself more: what waits in one place is computed again in another."""
    light, heavy = (
        simulate_fleet(chats(), 6, "4M", "affinity", FleetOptions(rate=600.0, weight=weight)).rows[0]
        for weight in (1.0, 4.0)
    )
    assert heavy.computed < light.computed
    assert heavy.first_token[0] < light.first_token[0]


def test_summaries_are_counted_for_every_router() -> None:
    one, four = (
        simulate_fleet(TOKENS, 3, "20k", "affinity", FleetOptions(routers=count, summary_every=5.0)).rows[0]
        for count in (1, 4)
    )
    assert 0 < one.summaries * 3 < four.summaries
    assert simulate_fleet(TOKENS, 3, "20k", "random").rows[0].summaries == 0


# ---- the queue -------------------------------------------------------------------------------------------------------


def draws(seed: int, count: int = 50) -> list[Request]:
    draw = random.Random(seed)
    times = sorted(draw.uniform(0, 60) for _ in range(count))
    prompts = [np.array([draw.randrange(3) for _ in range(draw.randint(1, 300))], np.int32) for _ in times]
    return [Request(time, prompt, generated=draw.randrange(90)) for time, prompt in zip(times, prompts)]


def naive_waits(requests: list[Request], replicas: int, capacity: int, options: FleetOptions) -> list[float]:
    """Seconds to each first token with one replica after the other, each by itself, request by request."""
    waits = []
    for mine in (requests[first::replicas] for first in range(replicas)):
        replay = _core.Replay(capacity)
        free, ends = 0.0, [0.0] * options.sessions  # when the next prompt may be computed; when sessions end
        for request in mine:
            ends.sort()
            begin = max(request.time, free, ends[-options.sessions])
            requested, _, reused = replay.serve(request.tokens, time=begin)
            free = begin + (requested - reused) / options.rate
            ends.append(free + request.generated * options.decode)
            waits.append(free - request.time)
    return sorted(waits)


def test_first_tokens_come_when_the_naive_queue_says() -> None:
    for seed, (replicas, sessions) in enumerate(((1, 1), (1, 3), (3, 1), (3, 2), (4, 64))):
        options = FleetOptions(rate=100.0, decode=0.05, sessions=sessions)
        requests = draws(seed)
        run = FleetRun(options, Memory(500, "lru", Cells(1, 1, False)), replicas, "round_robin")
        run.run(iter([arrival(each, Cells(1, 1, False)) for each in requests]))
        assert sorted(run.totals.waits) == pytest.approx(naive_waits(requests, replicas, 500, options))
        assert run.totals.answered == len(requests)


def test_a_queue_grows_where_one_replica_gets_too_much() -> None:
    requests = [Request(0.0, np.arange(100, dtype=np.int32)) for _ in range(8)]
    options = FleetOptions(rate=100.0)
    row = simulate_fleet(requests, 1, 1000, "random", options).rows[0]
    assert row.longest_queue == 7 and row.hottest == 1.0
    assert row.first_token[2] == pytest.approx(1 + 7 * 0.01)  # one token of a known prompt is computed
    even = simulate_fleet(requests, 8, 1000, "round_robin", options).rows[0]
    assert even.longest_queue == 0 and even.first_token == (1.0, 1.0, 1.0)


def test_a_prompt_that_many_ask_for_comes_to_be_known_by_several() -> None:
    requests = [Request(20 + 0.001 * at, np.arange(3200, dtype=np.int32)) for at in range(400)]
    options = FleetOptions(rate=10_000.0, sessions=4, decode=0.02, weight=1.0)
    asked = [replace(each, generated=100) for each in [Request(0.0, requests[0].tokens), *requests]]
    row = simulate_fleet(asked, 10, 10_000, "affinity", options).rows[0]
    assert row.hottest < 2.5 and row.computed >= 5 * 3200
    assert row.computed <= 10 * 3200 + len(asked)


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", [*ROUTINGS, "random+store"])
def test_every_request_is_answered_once_whatever_fails(routing: str) -> None:
    options = FleetOptions(rate=500.0, decode=0.1, fail_every=5.0, fail_for=12.0, routers=2, load=2.0)
    calm = simulate_fleet(TOKENS, 4, "20k", routing, replace(options, fail_every=0.0)).rows[0]
    row = simulate_fleet(TOKENS, 4, "20k", routing, options).rows[0]
    assert row.requests == row.answered == calm.requests == calm.answered == 55
    assert row.failures > 10 and row.rerouted > 0
    assert calm.failures == calm.rerouted == 0
    assert row.requested >= calm.requested
    if routing == "affinity":
        assert row.computed > calm.computed


def test_requests_wait_while_no_replica_is_there() -> None:
    options = FleetOptions(rate=1e6, decode=0.0, fail_every=1.0, fail_for=30.0)
    requests = [Request(float(at), np.arange(5, dtype=np.int32)) for at in range(100)]
    row = simulate_fleet(requests, 1, 100, "affinity", options).rows[0]
    assert row.answered == 100 and row.longest_queue > 10
    assert 20 < row.first_token[2] <= 30.001


# ---- what runs are made of -------------------------------------------------------------------------------------------


def test_the_summary_of_a_replay_has_the_ends_of_what_it_served() -> None:
    replay, prompt = _core.Replay(10_000), np.arange(3000, dtype=np.int32)
    replay.serve(prompt, namespace="x")
    known = kv.trie.fingerprints(prompt, "x")
    ends = {int(known[len(known) - 1 - back]) for back in (0, 1, 2, 4, 8, 16, 32)}
    assert set(replay.summary().tolist()) == ends
    assert len(replay.summary(3)) == 3 and len(replay.summary(0)) == 0
    with pytest.raises(kv.errors.ArgumentError, match="most"):
        replay.summary(-1)


def test_copies_share_what_many_requests_have() -> None:
    trace = read(BLOCKS, 64)
    three = list(adapted(trace, 0.0, 1.0, 3))
    uses = [set(request.tokens.tolist()) for request in trace]
    shared = {each for one in uses for each in one if sum(each in other for other in uses) * 100 >= len(uses)}
    assert len(three) == 372 and three == sorted(three, key=lambda request: request.time)
    assert len({each for request in three for each in request.tokens.tolist()}) == 3 * len(
        set().union(*uses)
    ) - 2 * len(shared)
    assert 0 < len(shared) < len(set().union(*uses))
    fast = list(adapted(trace, 50.0, 2.0, 1))
    times = [request.time for request in trace]
    assert [request.time for request in fast] == [time / 2 for time in times if time < times[0] + 50]
    assert fast[0].generated > 0
    with pytest.raises(kv.errors.ArgumentError, match="copy_per"):
        simulate_fleet(TOKENS, 4, "20k", options=FleetOptions(copy_per=2))


def test_the_store_moves_bytes_one_after_another() -> None:
    store = FleetStore(bandwidth=100.0, block_bytes=50, blocks=5)
    store.publish([1, 2, 3], now=0.0)  # there at 1.5
    store.publish([1, 2, 4], now=0.0)  # one block, there at 2.0
    assert [store.depth([1, 2, 3], 0, now) for now in (0.0, 1.4, 1.5)] == [0, 0, 3]
    assert store.depth([1, 2, 4], 1, 1.5) == 2 and store.depth([9], 1, 1.5) == 1
    assert store.fetch([1, 2, 3], 1, 0.4, 2.0) == (1, 0.0), "computing is as fast"
    assert store.fetch([1, 2, 3], 1, 0.6, 2.0) == (3, 1.0)
    assert store.fetch([1, 2, 4], 0, 0.6, 2.0) == (0, 0.0), "it would wait too long"
    assert (store.inward.moved, store.outward.moved, store.unsent) == (200, 100, 0)
    store.publish([5, 6], now=3.0)  # room for 5: what was furthest from the root goes
    assert store.depth([1, 2, 4], 0, 99.0) == 2 and store.depth([5, 6], 0, 99.0) == 2
    store.publish(list(range(100, 140)), now=10.0)
    store.publish([7], now=10.0 + 20.0 - PATIENCE - 0.1)
    assert store.unsent == 50


def test_a_shortlist_has_those_that_know_most() -> None:
    index: Index[int] = Index()
    summaries = {each: frozenset(range(10, 10 + each)) for each in range(1, 9)}  # 8 knows most
    for replica, known in summaries.items():
        index.turn(replica, known)
    shortlist = Shortlist(index, 4, seed=0)
    prompt = Prompt(640, list(range(10, 20)))
    found = shortlist.of(prompt, range(1, 100))
    assert found[:2] == [8, 7] and len(found) == len(set(found)) == 4
    shortlist.sent(prompt, 50)
    assert shortlist.of(prompt, range(1, 100))[0] == 50
    index.turn(8, frozenset())
    assert list(index.holders(17)) == [] and sorted(index.holders(16)) == [7]
    assert sorted(shortlist.of(Prompt(64, [3]), [4, 5])) == [4, 5]


# ---- arguments, reports, the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": []}, "replicas"),
        ({"replicas": 2.5}, "replicas"),
        ({"replicas": [1, True]}, "replicas"),
        ({"replicas": 10**6}, "replicas"),
        ({"capacity": "much"}, "capacity"),
        ({"capacity": [6400, 12800]}, "capacity"),
        ({"routing": "clairvoyant"}, "routing"),
        ({"routing": []}, "routing"),
        ({"routing": "affinity+shop"}, "routing"),
        ({"routing": 3}, "routing"),
        ({"trace": 3}, "trace"),
        ({"options": FleetOptions(policy="optimum")}, "policy"),
        *(
            ({"options": FleetOptions(**{name: value})}, name)
            for name, value in (
                ("rate", 0),
                ("rate", float("nan")),
                ("rate", "fast"),
                ("decode", -1.0),
                ("sessions", 0),
                ("summary_every", 0.0),
                ("summary_size", -1),
                ("routers", 0),
                ("candidates", 1),
                ("weight", 0.0),
                ("store_bandwidth", 0.0),
                ("fail_every", float("inf")),
                ("fail_for", 0.0),
                ("load", 0.0),
                ("copy_per", -1),
                ("seed", 0.5),
            )
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=names):
        simulate_fleet(**{"trace": BLOCKS, "replicas": 2, "capacity": 6400, "block": 64, **arguments})


def test_a_trace_without_requests_is_an_empty_report() -> None:
    def nothing() -> Iterator[Request]:
        yield from ()

    row = simulate_fleet(nothing(), 2, 100, "affinity").rows[0]
    assert (row.requests, row.hit_rate, row.first_token, row.busy) == (0, 0.0, (0.0, 0.0, 0.0), 0.0)


def test_progress_is_told() -> None:
    told: list[tuple[int, Any]] = []
    simulate_fleet(BLOCKS, 2, "50b", "random", block=64, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 124) for done in range(1, 125)]


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = ["simulate", str(BLOCKS), "--block", "64", "--capacity", "200b", "--replicas", "2,4", "--quiet"]
    chosen = ["--routing", "random,affinity+store", "--rate", "5000", "--copy-per", "2", "--json"]
    assert main([*asked, *chosen, str(tmp_path / "r.json")], out) == 0
    options = FleetOptions(rate=5000.0, copy_per=2)
    report = simulate_fleet(BLOCKS, [2, 4], "200b", ["random", "affinity+store"], options, block=64)
    assert out.getvalue() == report.table() + "\n"
    assert (tmp_path / "r.json").read_text() == report.to_json()
    lines = report.table().splitlines()
    assert lines[0].startswith("trace_blocks.jsonl: 12.8k tokens in each replica")
    assert [line.split()[:2] for line in lines[2:]] == [
        [count, routing] for count in ("2", "4") for routing in ("random", "affinity+store")
    ]
    assert report.row("random", 4).requests == 2 * report.row("random", 2).requests == 248
    with pytest.raises(kv.errors.ArgumentError, match="routing, replicas"):
        report.row("affinity", 4)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--replicas", "two"], 2),
        (["--replicas", "2", "--policy", "lru,slru"], 2),
        (["--replicas", "2", "--slots", "4"], 2),
        (["--replicas", "2", "--plot", "x.svg"], 2),
        (["--replicas", "2", "--rate", "0"], 1),
        (["--replicas", "2", "--routing", "best"], 1),
    ],
)
def test_the_command_refuses(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(BLOCKS), "--block", "64", "--capacity", "200b", *arguments]
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            main(command, io.StringIO())
    else:
        assert main(command, io.StringIO()) == code
    assert arguments[-2].lstrip("-") in capsys.readouterr().err
