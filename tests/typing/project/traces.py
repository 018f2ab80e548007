"""Replaying traces, and fleets of replicas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import kvtrie as kv
from kvtrie.replay import (
    KINDS,
    POLICIES,
    FleetOptions,
    FleetReport,
    FleetRow,
    Lengths,
    Report,
    Request,
    Row,
    Trace,
    Workload,
    of_records,
    of_requests,
    read,
    read_mooncake,
    read_tokens,
    simulate,
    simulate_fleet,
    synthesize,
    workload,
    write_mooncake,
    write_tokens,
)

Ints = npt.NDArray[np.int32]


def replay(path: Path) -> Report:
    print(*KINDS, *POLICIES)
    made = simulate(read(path, block=512, expand=True), ["1Mi", 5000], POLICIES, window=64, window_capacity=1000)
    assert_type(kv.replay.simulate(path, 100, "lru"), Report)
    assert_type(simulate(workload("sessions", seed=1), "2M", slots=4, checkpoint_every=64), Report)
    return made


def read_report(report: Report) -> None:
    assert_type(report.policies, list[str])
    assert_type(report.capacities, list[int])
    assert_type(report.row("lru", 100), Row)
    assert_type(report.rows, list[Row])
    assert_type(report.trace, str)
    assert_type(report.requests + report.symbol_tokens, int)
    assert_type(report.table() + report.to_json(seconds=True), str)
    report.plot("figure.svg")


def read_row(row: Row) -> None:
    assert_type(row.policy, str)
    assert_type(row.capacity + row.requested + row.reused + row.evicted, int)
    assert_type(row.seconds + row.hit_rate, float)


def make_trace(path: Path, tokens: Ints) -> Trace:
    one = Request(1.0, tokens, output=tokens, namespace="anna", session="s", generated=2)
    assert_type(of_requests([one], name="mine", whole=True), Trace)
    assert_type(read_mooncake(path, 512, expand=False), Trace)
    assert_type(read_tokens(path), Trace)
    records = synthesize(Workload())
    assert_type(write_tokens(records, path), int)
    assert_type(write_mooncake([one], path, block=512), int)
    assert_type(of_records(synthesize(Workload()), name="mine"), Trace)
    return Trace("mine", lambda: [one], symbol_tokens=1, whole=False, count=1)


def read_request(request: Request, trace: Trace) -> None:
    assert_type(request.time, float)
    assert_type(request.tokens, Ints)
    assert_type(request.output, Ints)
    assert_type(request.namespace + request.session + trace.name, str)
    assert_type(request.generated + trace.symbol_tokens, int)
    assert_type(trace.whole, bool)
    assert_type(trace.count, int | None)
    for each in trace.source():
        assert_type(each, Request)


def make_workload() -> str:
    lengths = Lengths(p50=100, p90=1000, most=5000)
    wanted = Workload(
        kind="mine",
        seed=1,
        sessions=10,
        gap=100,
        tick=0,
        more=500,
        first=lengths,
        growth=lengths,
        output=lengths,
        think=lengths,
        tenants=2,
        prompts=2,
        prompt=lengths,
        examples=1,
        example=lengths,
        documents=2,
        document=lengths,
        read=200,
        edit=100,
        again=50,
        sampled=1,
        samples=2,
        agents=True,
        turns=3,
        burst=1,
        width=2,
        depth=1,
        sweep=1,
        sweep_at=1,
        sweep_gap=1,
        clock_at=1,
        limit=1000,
    )
    return describe(wanted, lengths)


def describe(wanted: Workload, lengths: Lengths) -> str:
    return wanted.describe() + lengths.describe()


def fleet(path: Path) -> FleetReport:
    options = FleetOptions(
        policy="lru",
        rate=1000.0,
        decode=10.0,
        sessions=4,
        bytes_per_token=1000,
        summary_every=1.0,
        summary_size=512,
        routers=1,
        candidates=2,
        weight=1.0,
        store_bandwidth=1e9,
        store_capacity=1000,
        shared=0.5,
        fail_every=0.0,
        fail_for=1.0,
        load=1.0,
        copy_per=1,
        seconds=10.0,
        seed=1,
    )
    check(options)
    return simulate_fleet(path, [2, 4], "1M", ["affinity"], options, block=512, progress=False)


def check(options: FleetOptions) -> None:
    options.check()
    print(options.fetch_share)


def read_fleet(report: FleetReport, row: FleetRow) -> None:
    assert_type(report.row("affinity", 2), FleetRow)
    assert_type(report.rows, list[FleetRow])
    assert_type(report.trace + report.table() + report.to_json() + row.routing, str)
    assert_type(report.capacity + row.replicas + row.requests + row.answered + row.requested + row.reused, int)
    assert_type(row.fetched + row.computed + row.longest_queue + row.store_in + row.store_out + row.unsent, int)
    assert_type(row.summaries + row.failures + row.rerouted + row.bounds.endless, int)
    assert_type(row.until + row.busy + row.hottest + row.store_busy + row.hit_rate, float)
    assert_type(row.first_token, tuple[float, float, float])
