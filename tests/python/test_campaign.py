"""A share of the campaign (tests/campaign): random threads on one cache, and processes that are killed.

The programs print their seed, and the command that plays it again; `./dev soak` plays them for as long as it is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from circles import CIRCLE, SOAK
from processes import ROOT, run_python

CAMPAIGN = ROOT / "tests" / "campaign"
SEED = 20251124
OPERATIONS = {"test": 400, "ci": 2_000, "soak": 16_000}[CIRCLE]

pytestmark = pytest.mark.timeout(3600)


def played(program: str, *arguments: Any) -> dict[str, Any]:
    """What its last line says; its output where it found something."""
    done = run_python(CAMPAIGN / program, *arguments, timeout=3000)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def test_threads_on_one_cache_of_every_kind_and_tier() -> None:
    said = played("worker.py", "--seed", SEED, "--operations", OPERATIONS)
    print({name: value for name, value in said.items() if name != "memory"})
    assert said["operations"] >= OPERATIONS and said["rows"] > 0
    if SOAK:
        assert said["rows"] > 300_000
        assert said["model_faults"] > 50 and said["faults"] > said["model_faults"]
        assert said["caches"] > 2 * said["worlds"]  # closed by one of the threads, and opened again
        assert min(said["refused"][name] for name in ("ClosedError", "BusyError", "CacheFullError")) > 0


@pytest.mark.ci
def test_killed_in_the_middle_of_conversations() -> None:
    said = played("kills.py", "campaign", "--seed", SEED, "--rounds", 24 if SOAK else 3, "--races", 100 if SOAK else 6)
    print(said)
    assert said["kills"] >= 3
    assert said["rows"] > (20_000 if SOAK else 0) and said["disk"] + said["store"] > (1000 if SOAK else 0)


# ---- the campaign's own rules ---------------------------------------------------------------------------------------


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(CAMPAIGN))
    for name in ("naming", "world", "pieces", "soak"):
        sys.modules.pop(name, None)
    return __import__


def test_a_foreign_row_is_seen(campaign: Any) -> None:
    """The model that compares would see K/V of another namespace, of another prefix, and of another position."""
    naming, world = campaign("naming"), campaign("world")
    place = world.World("a world", None)
    try:
        text = place.texts[0]
        for namespace, tokens in (("other", text), ("a", [text[0] + 1, *text[1:]])):
            cheat = naming.NamingModel(place.pools)
            with place.cache.begin(tokens, namespace) as session:
                step = session.decode()
                frozen = naming.FrozenStep(step)
                frozen.sessions[0].namespace = "a"
                frozen.sessions[0].tokens = tokens
                super(naming.NamingModel, cheat).__call__(frozen)  # stores it under the wrong name
                session.append(1)
                reader = place.model()
                if namespace == "other":
                    with pytest.raises(AssertionError):
                        reader(session.decode())
                else:
                    reader(session.decode())
                    assert reader.compared > 0
    finally:
        place.cache.close()


def test_a_leak_is_a_slope(campaign: Any) -> None:
    soak = campaign("soak")
    flat = [[10_000 * n, 10_000_000 + (n * 7919) % 1000] for n in range(40)]
    slope, error = soak.line_through(flat)
    assert abs(slope) < 4 * error and not soak.grows(flat, slope)
    leak = [[x, y + 100 * x] for x, y in flat]  # 100 bytes for each operation, over 390,000
    slope, error = soak.line_through(leak)
    assert slope == pytest.approx(100_000, abs=4 * error)
    assert soak.grows(leak, slope - 4 * error)


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        ('noise\n{"operations": 7, "faults": 2}', 7),
        ("prefix cache oracle: 500 operations in 1 worlds (dense), seed 1: ok", 500),
        ("seed 1, 40000 operations, 8 threads\n[  PASSED  ] 1 test.", 40000),
        ("[  PASSED  ] 22 tests.", 22),
        ("12 passed in 3.00s", 12),
        ("seed 1: {'a model': 3, 'FormatError': 4}; the slowest took 0.1 s", 7),
        ("nothing of the kind", 99),
    ],
)
def test_what_a_piece_says_is_counted(text: str, operations: int, campaign: Any) -> None:
    assert campaign("pieces").counts_of(text, 99).operations == operations


def test_a_piece_that_fails_is_a_finding_with_its_command(campaign: Any, tmp_path: Path) -> None:
    soak, pieces = campaign("soak"), campaign("pieces")
    good = pieces.Piece("good", lambda seed, count: [sys.executable, "-c", f"print('{count} operations')"], 5, 50)
    bad = pieces.Piece("bad", lambda seed, count: [sys.executable, "-c", f"exit({seed} > 0)"], environment={"A": "b c"})
    made = soak.Soak(7, None, [good, bad])
    made.folder = tmp_path
    made.play()
    found = made.records["bad"].findings
    assert made.findings() == len(found) == 1
    assert found[0]["replay"].startswith("A='b c' ") and str(made.records["bad"].seeds[0]) in found[0]["replay"]
    assert made.records["good"].operations == 50 and made.records["good"].findings == []
