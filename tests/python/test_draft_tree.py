"""Trees of drafts in answers: whoever guesses, and however wide, the answer is that without, to the last bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from interruptions import Visit
from kinds_fakes import VOCAB as KINDS_VOCAB
from kinds_fakes import make
from kvtrie._draft_chance import Chance
from kvtrie._draft_costs import Costs
from kvtrie._draft_tree import Trees
from kvtrie._drafting import Drafting
from random_models import VOCAB, random_model
from spelling_model import TextModel
from sweep_families import FAMILIES
from test_draft import COUNT, SAMPLINGS, VARIED, make_cache, prompt
from test_draft_ends import ANSWER, PLAYS, Stop, read_on
from test_propose import SMALL
from test_propose_ends import TEXT, elsewhere

pytestmark = pytest.mark.usefixtures("nothing_left_over")


@pytest.fixture(scope="module", params=["dense", "window", "hybrid", "experts"])
def model(request: pytest.FixtureRequest) -> Any:
    return random_model(request.param)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees are as large as may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 5) for most in limits])
    monkeypatch.setattr(Trees, "best", lambda _self, found, *_: found)


def ways(answer: list[int], start: int, wrong_every: int, vocab: int = VOCAB) -> Callable[[Any, int], list[list[int]]]:
    """Three ways behind a prompt of ``start`` tokens: which of them is right, and how far, goes in turns."""

    def draft(tokens: Any, most: int) -> list[list[int]]:
        at = len(tokens) - start
        rest = answer[at : at + most]
        wrong = [(token + 1) % vocab if (at + i) % wrong_every == 0 else token for i, token in enumerate(rest)]
        late = [*rest[:-1], (rest[-1] + 2) % vocab] if rest else []
        turn = at % 3
        found = [wrong, late, [(token + 3) % vocab for token in rest]]
        return found[turn:] + found[:turn]

    return draft


def trees_of(answer: list[int], start: int) -> dict[str, Any]:
    return {
        "mostly right": kv.DraftTree(ways(answer, start, 5), 3),
        "often wrong": kv.DraftTree(ways(answer, start, 2), 2),
        "tree": kv.DraftTree("tree", 3),
        "suffix": [lambda _tokens, _most: [], kv.DraftTree("suffix", 3), "prompt"],
        "a line": kv.DraftTree(ways(answer, start, 3), 1),
    }


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_answer_is_that_without_drafts(model: Any, sampling: str) -> None:
    text, options = prompt(1), SAMPLINGS[sampling]
    with make_cache(model) as cache:
        with cache.begin(text) as session:
            plain = kv.generate(model, session, COUNT, ignore_eos=True, **options)
            answer = list(plain)
        for at in (4, 9, 20):  # others went on differently, and did so later
            with cache.begin([*text, *answer[:at], (answer[at] + 1) % VOCAB]) as session:
                list(kv.generate(model, session, 12, ignore_eos=True))
        for name, draft in trees_of(answer, len(text)).items():
            with cache.begin(text, publish=False) as session:
                drafted = kv.generate(model, session, COUNT, ignore_eos=True, draft=draft, **options)
                assert list(drafted) == answer, name
                assert drafted.logprobs == plain.logprobs, name
                assert session.tokens.tolist() == [*text, *answer]
                assert session.recorded - session.length == 1
                if name in ("mostly right", "often wrong", "tree"):
                    assert drafted.proposed > drafted.accepted > COUNT / 4, name
            assert cache.check() == []


@pytest.mark.usefixtures("eager")
def test_the_bits_are_those_without_drafts(model: Any) -> None:
    """Logits behind the answer, and K and V of every layer, on the CPU device."""

    def bits(draft: Any) -> tuple[list[int], bytes, list[bytes]]:
        with make_cache(model) as cache, cache.begin(prompt(2)) as session:
            answer = list(kv.generate(model, session, COUNT, **VARIED, draft=draft))
            logits = np.asarray(model(session.decode()), np.float32)
            rows = [np.asarray(part).tobytes() for pair in session.kv_all().values() for part in pair]
            return answer, logits.tobytes(), rows

    plain = bits(None)
    for name, draft in trees_of(plain[0], 30).items():
        assert bits(draft) == plain, name


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", "q8_0"),  # cells in blocks
        ("llama", "float16"),
        ("lfm2", "float32"),  # short convolutions
        ("bamba", "float32"),  # Mamba-2
        ("deepseek_v3", "float32"),  # latent attention
        ("gemma3n_text", "float32"),  # layers that read the cells of others
    ],
)
def test_the_bits_of_other_kinds_of_state(family: str, dtype: str) -> None:
    kind = kv.models._FAMILIES[family]
    config = kind.parse_config({**FAMILIES[family].file, **({"head_dim": 32} if dtype == "q8_0" else {})})
    random = np.random.default_rng(7)
    weights = {
        name: (random.standard_normal(shape) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)).astype(np.float32)
        for name, shape in kind.tensor_shapes(config).items()
    }
    model = kv.models.from_weights(config, weights, dtype="float32")
    text = [int(token) for token in random.integers(2, 60, 20)]

    def bits(draft: Any) -> tuple[list[int], bytes]:
        with kv.PrefixCache(model.caches(capacity=256, dtype=dtype)) as cache, cache.begin(text) as session:
            made = kv.generate(model, session, 24, **VARIED, draft=draft)
            answer = list(made)
            assert draft is None or made.proposed > made.accepted > 4
            logits = np.asarray(model(session.decode()), np.float32).tobytes()
            assert cache.check() == []
            return answer, logits

    plain = bits(None)
    draft = kv.DraftTree(ways(plain[0], len(text), 4, config.vocab_size), 3)
    assert bits(draft) == plain


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("most", [1, 2, 3, 8, 9])
def test_it_ends_where_it_ends_without(most: int) -> None:
    """By the count, and by a stop token inside what was drafted."""
    model, text = random_model("dense"), prompt(3)
    with make_cache(model) as cache:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        draft = kv.DraftTree(ways(answer, len(text), 4), 3)
        with cache.begin(text, use=False, publish=False) as session:
            assert list(kv.generate(model, session, most, **VARIED, draft=draft)) == answer[:most]
            assert session.recorded == len(text) + most
        stop = answer[most]
        end = answer.index(stop) + 1
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, stop=stop, **VARIED, draft=draft)
            assert (list(made), made.finish_reason) == (answer[:end], "stop")
            assert (session.recorded, session.length) == (len(text) + end, len(text) + end - 1)


def test_no_token_is_chosen_twice() -> None:
    """A processor sees each position once, however many paths have it."""
    model, text, seen = random_model("dense"), prompt(4), []

    def processor(tokens: Any, row: Any) -> Any:
        seen.append(len(tokens))
        return row

    with make_cache(model) as cache:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        with cache.begin(text, use=False, publish=False) as session:
            draft = kv.DraftTree(ways(answer, len(text), 3), 3)
            made = kv.generate(model, session, COUNT, **VARIED, draft=draft, logits_processors=processor)
            assert list(made) == answer and made.proposed > 0
    assert max(np.bincount(seen)) <= 2  # behind the last right one once more, where it was no draft


# ---- its ends --------------------------------------------------------------------------------------------------------


def half_right(tokens: Any, most: int) -> list[list[int]]:
    return ways(ANSWER, len(TEXT), 3, KINDS_VOCAB)(tokens, most)


def generation(model: Any, session: Any, **options: Any) -> Any:
    draft = [kv.DraftTree(half_right, 3), kv.DraftTree("suffix", 3)]
    return kv.generate(model, session, len(ANSWER), ignore_eos=True, draft=draft, **options)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["dense", "all"])
def test_an_exception_at_any_point_costs_no_token(kind: str) -> None:
    """KeyboardInterrupt comes where a handler raises it: everywhere. Reading on gives the rest."""

    def play(at: int) -> int:
        def raises(_place: object) -> None:
            raise Stop

        cache, model = make(kind, slots=96, **SMALL)
        rows = TextModel([each for _, each in model.layers])
        rows.layers = model.layers
        with cache.begin(TEXT) as session:
            made = generation(rows, session)
            visit = Visit(raises if at else None, at)
            with contextlib.suppress(Stop), visit:
                list(read_on(made))
            assert made.tokens == ANSWER[: len(made.tokens)], f"at {visit.place}"
            list(read_on(made))
            assert made.tokens == ANSWER, f"at {visit.place}"
            assert session.tokens.tolist() == [*TEXT, *ANSWER], f"at {visit.place}"
        assert cache.check() == [], f"at {visit.place}"
        cache.close()
        return visit.count

    points = play(0)
    assert points > 100
    for at in range(1, points, max(1, points // PLAYS)):
        play(at)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("what", ["session", "cache"])
def test_closed_elsewhere_at_any_point(what: str) -> None:
    """The reader is told so, with all tokens that were taken before; nothing is left of drafts."""

    def play(at: int) -> int:
        cache, model = make("hybrid", slots=96, **SMALL)
        rows = TextModel([each for _, each in model.layers])
        rows.layers = model.layers
        session = cache.begin(TEXT)
        made = generation(rows, session)
        visit = Visit((lambda _place: elsewhere((session if what == "session" else cache).close)) if at else None, at)
        with contextlib.suppress(kv.errors.ClosedError), visit:
            list(read_on(made))
        assert made.tokens == ANSWER[: len(made.tokens)], f"at {visit.place}"
        if what == "session" or not at:
            session.close()
            assert cache.check() == [], f"at {visit.place}"
        cache.close()
        return visit.count

    points = play(0)
    for at in range(1, points, max(1, points // PLAYS)):
        play(at)


@pytest.mark.usefixtures("eager")
def test_where_there_is_no_room_it_goes_on_without() -> None:
    cache, model = make("hybrid", slots=5, **SMALL)
    rows = TextModel([each for _, each in model.layers])
    rows.layers = model.layers
    with cache.begin(TEXT) as session:
        made = generation(rows, session)
        assert list(made) == ANSWER
    assert cache.check() == []


# ---- refused ---------------------------------------------------------------------------------------------------------


def test_what_is_no_tree_is_refused_by_name() -> None:
    for source, breadth, error, match in (
        (
            "prompt",
            2,
            kv.errors.ArgumentError,
            r"\[draft_tree\] source: got 'prompt' \(str\), allowed \"tree\", \"suffix\"",
        ),
        (3, 2, kv.errors.ArgumentTypeError, r"\[draft_tree\] source"),
        ("tree", 0, kv.errors.ArgumentError, r"\[draft_tree\] breadth: got 0, allowed 1 to 8"),
        ("tree", 9, kv.errors.ArgumentError, r"\[draft_tree\] breadth: got 9, allowed 1 to 8"),
        ("tree", 2.0, kv.errors.ArgumentTypeError, r"\[draft_tree\] breadth"),
        ("tree", True, kv.errors.ArgumentTypeError, r"\[draft_tree\] breadth"),
    ):
        with pytest.raises(error, match=match):
            kv.DraftTree(source, breadth)  # type: ignore[arg-type]
    model, text = random_model("dense"), prompt(5)
    with make_cache(model) as cache:
        for given in (lambda *_: [1, 2], lambda *_: [["a"]], lambda *_: 3, lambda *_: [[1.5]]):
            with cache.begin(text) as session, pytest.raises(kv.errors.ArgumentTypeError):
                list(kv.generate(model, session, 4, draft=kv.DraftTree(given), ignore_eos=True))
        with cache.begin(text) as session, pytest.raises(kv.errors.ArgumentError, match="token id 97"):
            list(kv.generate(model, session, 4, draft=kv.DraftTree(lambda *_: [[97]]), ignore_eos=True))
        with pytest.raises(kv.errors.ArgumentError, match=r"\[batch\] draft: got a tree of drafts, allowed lines"):
            kv.Batch(model, cache).add(text, 4, draft=kv.DraftTree("tree"))
        with kv.Batch(model, cache) as batch:  # a tree of one path is a line
            batch.add(text, 4, draft=kv.DraftTree("tree", 1), ignore_eos=True)
            while batch.step():
                pass


# ---- how wide, without a model and without a clock -------------------------------------------------------------------


def measured(slope: float) -> Costs:
    costs = Costs()
    for rows in range(1, 80):
        for _ in range(2):
            costs.steps.measured(rows, 1 + slope * (rows - 1))
    return costs


def expected_tokens(paths: list[list[int]], chance: Chance, other: float) -> float:
    """By playing what is chosen at each place, over all outcomes: the first choice, one of the others, or none."""

    def behind(taken: list[int], firsts: int) -> float:
        choices = list(dict.fromkeys(p[len(taken)] for p in paths if len(p) > len(taken) and p[: len(taken)] == taken))
        total, left = 1.0, 1.0
        for place, token in enumerate(choices):
            likely = left * (chance.behind(firsts) if place == 0 else other)
            total += likely * behind([*taken, token], firsts + (place == 0))
            left -= likely
        return total

    return behind([], 0)


def test_the_tokens_of_a_tree_are_what_is_expected() -> None:
    print("seed 44")
    random = np.random.default_rng(44)
    for _ in range(200):
        trees = Trees()
        paths: list[list[int]] = []
        for _ in range(int(random.integers(1, 4))):
            path = random.integers(0, 2, random.integers(1, 5)).tolist()
            if not any(path[: len(each)] == each or each[: len(path)] == path for each in paths):
                paths.append(path)
        chance = Chance(*(float(each) for each in random.uniform(0.1, 9, 2)))
        assert trees.tokens(paths, chance) == pytest.approx(expected_tokens(paths, chance, trees.chance))


def test_other_ways_are_drafted_where_they_are_right() -> None:
    """The first choice never is, the second always: with a tree, and without one."""

    def made(breadth: int, right_way: int, slope: float, steps: int = 300) -> float:
        costs, tokens, spent = Costs(), 0, 0.0
        found = [[way, *range(10, 16)] for way in range(3)]
        drafting = Drafting([kv.DraftTree(lambda *_: found, breadth)], costs, clock=lambda: spent)
        session: Any = type("Session", (), {"tokens": np.zeros(1, np.int32)})()
        for _ in range(steps):
            paths = drafting.paths(session, 100)
            rows = sum(map(len, paths)) + max(1, len(paths))
            spent += 1 + slope * (rows - 1)
            tokens += 1
            if paths:
                path = min(right_way, len(paths) - 1)
                right = len(paths[path]) if path == right_way else 0
                drafting.verified(paths, path, right)
                tokens += right
            drafting.stepped(rows, 1 + slope * (rows - 1), max(1, len(paths)))
        return tokens / spent

    for slope in (0.02, 0.1):
        assert made(2, 1, slope) > 1.3 > 1.03 > made(1, 1, slope)
        assert made(3, 9, slope) >= 0.95  # never right: next to nothing
        assert made(3, 0, slope) >= 0.8 * made(1, 0, slope) > 1.5
    assert made(3, 1, 1.0, 1000) >= 0.97  # rows as dear as steps


def test_what_was_right_is_learned() -> None:
    trees = Trees()
    for _ in range(50):
        assert trees.verified([[1, 2], [1, 3], [4]], 1, 2) == 1  # the second way behind 1
    assert trees.chance > 0.9
    for _ in range(50):
        assert trees.verified([[1, 2], [1, 3], [4]], 0, 1) == 0
    assert trees.chance < 0.1
    before = trees.chance
    assert trees.verified([[1, 2], [1, 3], [4]], 0, 2) == 0  # the first choices: of others nothing is known
    assert trees.chance == pytest.approx(before, abs=0.1)
