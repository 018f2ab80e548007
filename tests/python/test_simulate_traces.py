"""What trace files promise, and what the generator of synthetic ones draws."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie.replay import (
    KINDS,
    Lengths,
    Request,
    of_records,
    read,
    read_tokens,
    synthesize,
    workload,
    write_mooncake,
    write_tokens,
)
from kvtrie.replay.draws import Draws, Zipf, log2_of
from kvtrie.replay.tokens import stream

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = Path(__file__).with_name("trace_blocks.jsonl")  # 124 requests, blocks of 64 tokens
TOKENS = ROOT / "examples" / "trace.jsonl"
SMALL: dict[str, Any] = {
    "more": 600,
    "first": Lengths(400, 2000, 6000),
    "growth": Lengths(60, 200, 1000),
    "output": Lengths(80, 160, 400),
    "prompt": Lengths(300, 600, 900),
    "document": Lengths(500, 900, 1500),
}


# ---- files -----------------------------------------------------------------------------------------------------------


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return path


def test_token_level_sessions_become_requests(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        {"t": 0, "session": "a", "namespace": "n", "ops": [["append", [1, 2, 3]], ["generate", {"seed": 5, "n": 2}]]},
        "",
        {"t": 1.5, "session": "b", "parent": "a", "ops": [["branch", 2], ["append", [9]], ["generate", 1], ["end"]]},
        {"t": 2, "session": "a", "ops": [["rollback", 4], ["append", {"seed": 5, "n": 2, "from": 1}]]},
        {"t": 2, "session": "a", "ops": [["append", [7]], ["generate", 0], ["append", []], ["end"]]},
    )
    five = stream(5, 0, 3).tolist()
    got = [(r.time, r.session, r.namespace, r.tokens.tolist(), len(r.output)) for r in read(path)]
    assert got == [
        (0.0, "a", "n", [1, 2, 3], 2),
        (1.5, "b", "n", [1, 2, 9], 1),
        (2.0, "a", "n", [1, 2, 3, five[0], *five[1:]], 0),
        (2.0, "a", "n", [1, 2, 3, five[0], *five[1:], 7], 0),
    ]
    assert next(iter(read(path))).output.tolist() == five[:2]


def test_streams_of_tokens_can_be_had_from_anywhere() -> None:
    assert stream(7, 3, 5).tolist() == stream(7, 0, 8).tolist()[3:]
    assert stream(7, 0, 4).tolist() != stream(8, 0, 4).tolist()
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # SplitMix64 from the state 0
    assert stream(0, 0, 3).tolist() == [each >> 33 for each in published]
    assert stream(1, 0, 1000).min() >= 0


SESSION = {"t": 1, "session": "a", "ops": [["append", [1, 2]]]}
BLOCK = {"timestamp": 5, "input_length": 513, "output_length": 1, "hash_ids": [0, 1]}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ({**SESSION, "t": 0.5}, "t: got 0.5"),
        ({**SESSION, "t": "1"}, "t: got '1'"),
        ({**SESSION, "t": True}, "t: got True"),
        ('{"t": NaN, "session": "a", "ops": []}', "no JSON"),
        ('{"t": 1e999, "session": "a", "ops": [["end"]]}', "t: got inf"),
        ('{"t": 1' + "0" * 5000 + "}", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1, 2]", "allowed an object"),
        ("{", "no JSON"),
        ({"session": "b", "ops": [["end"]]}, "t: missing"),
        ({**SESSION, "session": ""}, "session"),
        ({**SESSION, "session": 7}, "session: got 7"),
        ({**SESSION, "opps": []}, "'opps': unknown"),
        ({**SESSION, "namespace": "other"}, "namespace: got 'other'"),
        ({**SESSION, "parent": "x"}, "parent"),
        ({**SESSION, "session": "b", "parent": "nobody"}, "parent: got 'nobody'"),
        ({**SESSION, "session": "b", "parent": "a"}, r"ops\[0\]"),
        ({"t": 1, "session": "b", "parent": "a", "ops": [["branch", 3]]}, r"ops\[0\]: got 3, allowed .*0 to 2"),
        ({**SESSION, "ops": []}, "ops: got"),
        ({**SESSION, "ops": "end"}, "ops: got 'end'"),
        ({**SESSION, "ops": [["jump", 3]]}, r"ops\[0\]: got .*jump"),
        ({**SESSION, "ops": [["end", 3]]}, "0 arguments for end"),
        ({**SESSION, "ops": [["append"]]}, "1 arguments for append"),
        ({**SESSION, "ops": [["end"], ["append", [1]]]}, r"ops\[0\]"),
        ({**SESSION, "ops": [["branch", 1]]}, r"ops\[0\].*parent"),
        ({**SESSION, "ops": [["rollback", 3]]}, r"ops\[0\]: got 3, allowed a whole number, 0 to 2"),
        ({**SESSION, "ops": [["append", [1, -4]]]}, r"ops\[0\]\[1\]: got -4"),
        ({**SESSION, "ops": [["append", [2**31]]]}, r"ops\[0\]\[0\]"),
        ({**SESSION, "ops": [["append", 5]]}, r"ops\[0\]: got 5"),
        ({**SESSION, "ops": [["append", {"seed": 1}]]}, r"ops\[0\]"),
        ({**SESSION, "ops": [["append", {"seed": 1, "n": 2, "to": 3}]]}, r"ops\[0\]"),
        ({**SESSION, "ops": [["append", {"seed": 1, "n": 10**12}]]}, r"ops\[0\], n: got 1000000000000"),
        ({**SESSION, "ops": [["append", {"seed": -1, "n": 1}]]}, r"ops\[0\], seed"),
        ({**SESSION, "ops": [["generate", 1 << 24]]}, r"ops\[0\], n"),
        ({"t": 1, "session": "new", "ops": [["generate", 3]]}, r"ops\[0\].*at least 1 token"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: Any, names: str) -> None:
    path = written(tmp_path / "bad.jsonl", SESSION, line)
    with pytest.raises(kv.errors.FormatError, match=names) as caught:
        kv.replay.simulate(path, 1000)
    assert "bad.jsonl line 2" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ({**BLOCK, "timestamp": 4}, "timestamp: got 4"),
        ({**BLOCK, "input_length": 0}, "input_length: got 0"),
        ({**BLOCK, "input_length": 512}, "count of hash_ids: got 2, allowed 1: one for each 512"),
        ({**BLOCK, "input_length": 2**31 - 1, "hash_ids": [1]}, "input_length: got 2147483647, allowed at most"),
        ({**BLOCK, "output_length": -1}, "output_length"),
        ({**BLOCK, "hash_ids": [0, -1]}, r"hash_ids\[1\]: got -1"),
        ({**BLOCK, "hash_ids": [0, 1.5]}, r"hash_ids\[1\]: got 1.5"),
        ({**BLOCK, "hash_ids": {}}, "hash_ids: got {}"),
        ({"timestamp": 6}, "input_length: missing"),
    ],
)
def test_a_bad_mooncake_line_is_named_with_its_field(tmp_path: Path, line: Any, names: str) -> None:
    path = written(tmp_path / "bad.jsonl", BLOCK, line)
    with pytest.raises(kv.errors.FormatError, match=names) as caught:
        kv.replay.simulate(path, 5000)
    assert "bad.jsonl line 2" in str(caught.value)


def test_a_prompt_too_long_to_expand_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "long.jsonl", {**BLOCK, "input_length": 2**31 - 1, "hash_ids": list(range(2048))})
    assert kv.replay.simulate(path, 2**31, block=2**20).requests == 1
    with pytest.raises(kv.errors.FormatError, match=r"line 1, input_length: got 2147483647, allowed at most 16777216"):
        kv.replay.simulate(path, 2**20, block=2**20, expand=True)


def test_an_ended_session_is_over_and_a_file_says_what_it_is(tmp_path: Path) -> None:
    ended = {"t": 1, "session": "a", "ops": [["end"]]}
    with pytest.raises(kv.errors.FormatError, match="session: got 'a', allowed a session that has not ended"):
        kv.replay.simulate(written(tmp_path / "e.jsonl", SESSION, ended, ended), 10)
    with pytest.raises(kv.errors.FormatError, match="neither hash_ids"):
        kv.replay.simulate(written(tmp_path / "n.jsonl", {"prompt": "hello"}), 10)
    with pytest.raises(kv.errors.FormatError, match="no line"):
        kv.replay.simulate(written(tmp_path / "empty.jsonl"), 10)
    with pytest.raises(kv.errors.ArgumentError, match="allowed a file"):
        kv.replay.simulate(tmp_path, 10)


# ---- synthetic traces ------------------------------------------------------------------------------------------------


def test_the_committed_traces_are_what_the_generator_makes(tmp_path: Path) -> None:
    tokens = synthesize(workload("sessions", seed=1, sessions=24, edit=200, **SMALL))
    assert write_tokens(tokens, tmp_path / "t.jsonl") == 55
    assert (tmp_path / "t.jsonl").read_bytes() == TOKENS.read_bytes()
    blocks = of_records(synthesize(workload("sessions", seed=2, sessions=40, **SMALL)))
    assert write_mooncake(blocks, tmp_path / "b.jsonl", 64) == 124
    assert (tmp_path / "b.jsonl").read_bytes() == BLOCKS.read_bytes()


def test_a_seed_is_all_that_differs(tmp_path: Path) -> None:
    for kind in KINDS:
        small = {"sessions": 6, "turns": 3}
        first, again, other = (list(synthesize(workload(kind, seed=seed, **small))) for seed in (3, 3, 4))
        assert first == again != other
        times = [record["t"] for record in first]
        assert times == sorted(times)
        write_tokens(first, tmp_path / kind)
        read_back = list(read_tokens(tmp_path / kind))
        for a, b in zip(of_records(first), read_back):
            assert (a.time, a.session, a.namespace) == (b.time, b.session, b.namespace)
            assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.output, b.output)


def test_lengths_have_the_quantiles_they_are_fitted_to() -> None:
    draws = Draws("quantiles")
    wanted = Lengths(6909, 27367, 126195)
    found = np.array([draws.lengths(wanted) for _ in range(20_000)])
    assert np.quantile(found, 0.5) == pytest.approx(6909, rel=0.03)
    assert np.quantile(found, 0.9) == pytest.approx(27367, rel=0.05)
    assert np.quantile(found, 0.99) == pytest.approx(85399, rel=0.1)  # measured on the trace, not fitted
    assert found.max() == 126195 and found.min() >= 1
    same = [draws.lengths(Lengths(900, 900, 900)) for _ in range(100)]
    assert set(same) == {900}


def test_draws_follow_their_laws() -> None:
    draws = Draws("laws")
    gaps = [draws.exponential(10_000) for _ in range(20_000)]
    assert statistics.mean(gaps) == pytest.approx(10_000, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(10_000, rel=0.04)
    turns = [draws.geometric(750) for _ in range(10_000)]
    assert statistics.mean(turns) == pytest.approx(3, rel=0.05)
    ranks = [Zipf(10).draw(draws) for _ in range(20_000)]
    shares = [ranks.count(rank) / len(ranks) for rank in range(10)]
    harmonic = sum(1 / rank for rank in range(1, 11))
    assert shares == pytest.approx([1 / harmonic / rank for rank in range(1, 11)], abs=0.012)
    uniform = [draws.below(7) for _ in range(14_000)]
    assert [uniform.count(value) / 14_000 for value in range(7)] == pytest.approx([1 / 7] * 7, abs=0.01)
    assert Zipf(0).draw(draws) is None
    assert log2_of(8, 1) == 3 << 20 and log2_of(5, 5) == 0
    assert log2_of(27367, 6909) / 2**20 == pytest.approx(1.98592, abs=1e-4)


def test_blocks_agree_with_the_tokens_they_were_made_of(tmp_path: Path) -> None:
    records = list(synthesize(workload("sessions", seed=9, sessions=15, edit=300, sampled=300, **SMALL)))
    tokens = list(of_records(records))
    write_mooncake(tokens, tmp_path / "b.jsonl", 16)
    blocks = list(read(tmp_path / "b.jsonl", 16))
    assert len(blocks) == len(tokens) > 30

    def common(a: Any, b: Any) -> int:
        length = min(len(a), len(b))
        equal = a[:length] == b[:length]
        return length if equal.all() else int(equal.argmin())

    partly = 0
    for (a, a_ids), (b, b_ids) in itertools.combinations(zip(tokens, blocks), 2):
        shared = common(a.tokens, b.tokens) if a.namespace == b.namespace else 0
        partly += shared % 16 != 0
        whole = shared == len(a.tokens) == len(b.tokens)
        assert common(a_ids.tokens, b_ids.tokens) == (-(-shared // 16) if whole else shared // 16)
    assert partly > 10


def prompts_of(kind: str, **changes: Any) -> list[Request]:
    return list(of_records(synthesize(workload(kind, **{**SMALL, "sessions": 30, "seed": 5, **changes}))))


def test_samples_helpers_and_ticks_come_at_the_same_time() -> None:
    sampled = prompts_of("sessions", sampled=1000, samples=4)
    groups = [list(group) for _, group in itertools.groupby(sampled, key=lambda r: (r.time, r.session.split(".")[0]))]
    assert {len(group) for group in groups} == {4}
    for first, *others in groups:
        assert all(np.array_equal(first.tokens, other.tokens) for other in others)
        assert len({other.output.tobytes() for other in [first, *others]}) == 4
    agents = prompts_of("agents", sessions=3, turns=6, burst=1000, width=3, depth=2)
    levels = {request.session.count(".") // 2 for request in agents}
    assert levels == {0, 1, 2}
    main = [request for request in agents if request.session == "a0"]
    assert len(main) == 6
    helpers = [r for r in agents if r.session.startswith("a0.1.") and r.session.count(".") == 2]
    assert [r.time for r in helpers[:3]] == [main[0].time] * 3
    end = np.concatenate([main[0].tokens, main[0].output])
    assert all(np.array_equal(r.tokens[: len(end)], end) for r in helpers[:3])
    ticked = prompts_of("sessions", tick=3000, more=0)
    assert all(request.time % 3 == 0 for request in ticked)


def test_edits_part_inside_what_was_said() -> None:
    plain = prompts_of("sessions", edit=0, again=0, more=800)
    edited = prompts_of("sessions", edit=1000, again=0, more=800)
    for requests, parts in ((plain, False), (edited, True)):
        before: dict[str, Request] = {}
        diverged = 0
        for request in requests:
            last = before.get(request.session)
            if last is not None:
                said = np.concatenate([last.tokens, last.output])
                diverged += not np.array_equal(request.tokens[: len(said)], said)
            before[request.session] = request
        assert (diverged > 10) == parts
    asked = prompts_of("sessions", edit=0, again=1000, more=800)
    prompts = {
        session: {r.tokens.tobytes() for r in asked if r.session == session} for session in {r.session for r in asked}
    }
    assert {len(each) for each in prompts.values()} == {1}


def test_noise_costs_what_it_should() -> None:
    def rate(kind: str, capacity: int, **changes: Any) -> float:
        records = synthesize(workload(kind, **{**SMALL, "sessions": 40, "seed": 5, **changes}))
        return kv.replay.simulate(of_records(records), capacity).rows[0].hit_rate

    usual = rate("sessions", 10**6)
    assert rate("hostile", 10**6, limit=0) < 0.1 * usual  # the clock ends every match
    cut = rate("hostile", 10**6, clock_at=0, limit=600)
    assert 0 < cut < usual
    assert all(len(r.tokens) <= 600 + 6000 + 900 + 1500 for r in prompts_of("hostile", clock_at=0, limit=600))
    swept = rate("scan", 8000, sweep=200)
    assert swept < rate("sessions", 8000)


def test_parameters_are_checked() -> None:
    with pytest.raises(kv.errors.ArgumentError, match="kind"):
        workload("chaos")
    for change, names in (
        ({"turn": 3}, "parameter: got 'turn'"),
        ({"more": 1001}, "more: got 1001, allowed 0 to 1000"),
        ({"sessions": -1}, "sessions"),
        ({"sessions": 1.5}, "sessions: got 1.5"),
        ({"tenants": 0}, "tenants: got 0, allowed 1"),
        ({"first": Lengths(5, 4, 9)}, "first"),
        ({"first": (1, 2, 10**9)}, "first"),
        ({"first": 7}, "first"),
        ({"agents": 1}, "agents"),
    ):
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=names):
            workload("sessions", **change)
