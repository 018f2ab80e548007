"""Every argument of forward, with a session that knows the beginning: what the call gives without a cache, or an
error of kvtrie's that names it.

The table is checked against the signatures of all decoders and heads and against transformers' list of keywords, so an
argument that a new version brings fails here until somebody says which values it has.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.utils.generic import TransformersKwargs  # noqa: E402

import bounds  # noqa: E402
import hf_models as hf  # noqa: E402
from circles import CIRCLE  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left_over")

KNOWN, LENGTH = 14, 20

Value = Callable[[Any, Any], Any]  # of a model and the ids of a call


def plain(*values: Any) -> list[Value]:
    return [lambda _model, _ids, value=value: value for value in values]


def holes(_model: Any, ids: Any) -> Any:
    mask = torch.ones_like(ids)
    mask[:, 3] = 0
    return mask


def causal(_model: Any, ids: Any) -> Any:
    return torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)[None, None]


def positions(_model: Any, ids: Any) -> Any:
    return torch.arange(ids.shape[1])[None]


VALUES: dict[str, list[Value]] = {
    "input_ids": [lambda _model, ids: ids],
    "attention_mask": [*plain(None), lambda _model, ids: torch.ones_like(ids), holes, causal],
    "position_ids": [*plain(None), positions, lambda model, ids: positions(model, ids) * 2],
    "cache": plain(),  # every call has one
    "inputs_embeds": [lambda model, ids: model.get_input_embeddings()(ids).detach()],
    "labels": [lambda _model, ids: ids, lambda _model, ids: torch.where(ids % 3 == 0, -100, ids)],
    "use_cache": plain(None, True, False),
    "logits_to_keep": [
        *plain(1, 2, KNOWN, LENGTH - 1, LENGTH + 5, -3, torch.tensor([0, 7]), torch.arange(5)),
        lambda _model, ids: torch.arange(ids.shape[1]) % 2 == 0,
    ],
    "output_router_logits": plain(None, True, False),
    "output_hidden_states": plain(None, True, False, 1, [0, -1]),
    "output_attentions": plain(None, True, False),
    "return_dict": plain(None, True, False),
    "num_items_in_batch": plain(7, torch.tensor(7)),
    "cu_seq_lens_q": plain(torch.tensor([0, LENGTH])),
    "cu_seq_lens_k": plain(torch.tensor([0, LENGTH])),
    "max_length_q": plain(LENGTH),
    "max_length_k": plain(LENGTH),
    "is_causal": plain(None, True, False),
    "seq_idx": [lambda _model, ids: torch.zeros_like(ids, dtype=torch.int32)],
    "token_type_ids": [lambda _model, ids: torch.zeros_like(ids), lambda _model, ids: torch.ones_like(ids)],
    "num_logits_to_keep": plain(1, 5),  # what logits_to_keep was called
    "cache_position": [lambda _model, ids: torch.arange(ids.shape[1])],
    "adapter_names": plain(["__base__"]),
}
FEWER = ("logits", "last_hidden_state")  # fields that have the rows that were computed: docs/transformers.md
ALL = [("copy", name) for name in hf.ALL] + [("cells", name) for name in hf.IN_CELLS]
QUICK = [("copy", "llama"), ("cells", "llama"), ("copy", "mixtral"), ("cells", "gemma3"), ("copy", "qwen3_5")]
SAMPLED = {"test": 5, "ci": 20}.get(CIRCLE, 600)  # combinations of arguments for each model


def names_of(function: Any) -> set[str]:
    found = inspect.signature(function).parameters.values()
    return {each.name for each in found if each.kind is not inspect.Parameter.VAR_KEYWORD} - {"self"}


def test_no_argument_is_unknown() -> None:
    found = set(TransformersKwargs.__annotations__)
    for name in hf.ALL:
        model = hf.tiny(name)
        found |= names_of(type(model).forward) | names_of(type(model.get_decoder()).forward)
    assert found <= set(VALUES)


def call(run: Any, given: dict[str, Any], past: Any = None) -> dict[str, Any]:
    """The fields of the output; "error" where there is none."""
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            output = run(**given) if past is None else run(cache=past, **given)
    except kv.errors.BusyError:
        raise
    except Exception as error:
        return {"error": error}
    fields = dict(output) if hasattr(output, "items") else {str(at): each for at, each in enumerate(output)}
    return {name: each for name, each in fields.items() if not isinstance(each, transformers.Cache)}


def compare(got: Any, wanted: Any, name: str, fewer: bool) -> None:
    if isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted):
            compare(a, b, name, False)
    elif torch.is_tensor(wanted):
        if fewer and got.ndim == 3:
            wanted = wanted[:, -got.shape[1] :]
        assert got.shape == wanted.shape, name
        bounds.close(got.float(), wanted.float(), bounds.LOGITS_OF_TORCH)
    else:
        assert got == wanted, name


class Table:
    """Calls of one model's decoder and head in one form, each in a new session that knows the beginning."""

    def __init__(self, form: str, name: str, seed: int) -> None:
        print("seed", seed)
        self.chance = random.Random(seed)
        self.model = hf.tiny(name)
        self.ids = torch.cat([hf.prompt(KNOWN), hf.prompt(LENGTH - KNOWN, seed=2)], 1)
        self.cache = kv.hf.Cache(self.model, capacity=1024, slots=64, form=form)
        self.every_way = CIRCLE == "soak" or (CIRCLE == "ci" and (form, name) in QUICK)
        self.counts = {"equal": 0, "refused": 0, "both raise": 0}
        with torch.no_grad(), self.cache.session() as past:
            self.model(self.ids[:, :KNOWN], cache=past)

    def given(self, chosen: dict[str, Value]) -> dict[str, Any]:
        made = {name: value(self.model, self.ids) for name, value in chosen.items()}
        return made if "inputs_embeds" in made else {"input_ids": self.ids, **made}

    def play(self, run: Any, chosen: dict[str, Value]) -> None:
        """In each way, or in one of them by chance."""
        ways = [self.first, self.announced, self.later]
        for way in ways if self.every_way else [self.chance.choice(ways)]:
            print(type(run).__name__, way.__name__, {name: make(self.model, self.ids) for name, make in chosen.items()})
            way(run, chosen)

    def first(self, run: Any, chosen: dict[str, Value], *announced: Any) -> None:
        """In the first call of a session."""
        # Positions that do not rise by one are several texts in one, but only where no cache is given.
        own = transformers.DynamicCache(config=self.model.config) if "position_ids" in chosen else None
        wanted = call(run, self.given(chosen), own)
        with self.cache.session(*announced) as past:
            self.check(call(run, self.given(chosen), past), wanted)

    def announced(self, run: Any, chosen: dict[str, Value]) -> None:
        """The same where the session was told the prompt before."""
        self.first(run, chosen, self.ids)

    def later(self, run: Any, chosen: dict[str, Value]) -> None:
        """In a call that goes on, beside transformers' own cache, where that does not lose its state."""
        if self.cache.layout.stepwise:
            return
        own = transformers.DynamicCache(config=self.model.config)
        with torch.no_grad(), self.cache.session() as past:
            self.model(self.ids[:, :KNOWN], cache=past)
            self.model(self.ids[:, :KNOWN], cache=own)
            before, self.ids = self.ids, self.ids[:, KNOWN:]
            try:
                given = self.given(chosen)
                self.check(call(run, given, past), call(run, given, own))
            finally:
                self.ids = before

    def check(self, got: dict[str, Any], wanted: dict[str, Any]) -> None:
        if "error" in wanted:
            assert "error" in got, wanted["error"]
            self.counts["both raise"] += 1
        elif isinstance(got.get("error"), kv.Error):
            self.counts["refused"] += 1
        else:
            assert "error" not in got, got
            assert got.keys() == wanted.keys()
            for name, field in wanted.items():
                compare(got[name], field, name, name in FEWER or name == "0")
            self.counts["equal"] += 1


@pytest.mark.parametrize(
    ("form", "name"),
    [*QUICK[:2], *(pytest.param(*each, marks=pytest.mark.ci) for each in ALL if each not in QUICK[:2])],
)
def test_each_value_of_each_argument(form: str, name: str) -> None:
    table = Table(form, name, seed=ALL.index((form, name)))
    with table.cache:
        for run in (table.model, table.model.get_decoder()):
            known = names_of(type(run).forward) | set(TransformersKwargs.__annotations__)
            for argument in sorted(known | {"num_logits_to_keep", "token_type_ids", "cache_position", "adapter_names"}):
                for value in VALUES[argument]:
                    table.play(run, {argument: value})
        assert table.cache.prefix_cache.check() == []
    print(table.counts)


@pytest.mark.parametrize(
    ("form", "name"),
    [*QUICK[2:], *(pytest.param(*each, marks=pytest.mark.ci) for each in ALL if each not in QUICK[2:])],
)
def test_arguments_together(form: str, name: str) -> None:
    """Two or three at a time."""
    table = Table(form, name, seed=ALL.index((form, name)))
    chance = table.chance
    with table.cache:
        for _ in range(SAMPLED):
            run = chance.choice((table.model, table.model.get_decoder()))
            names = sorted(
                (names_of(type(run).forward) | set(TransformersKwargs.__annotations__)) - {"input_ids", "cache"}
            )
            chosen = {each: chance.choice(VALUES[each]) for each in chance.sample(names, chance.choice((2, 3)))}
            table.play(run, chosen)
        assert table.cache.prefix_cache.check() == []
    print(table.counts)
