"""Layers that grow in place, driven at random beside transformers' own, which copy the history for every token."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import cache_utils  # noqa: E402

from kvtrie.hf import layers  # noqa: E402

HEADS, K_DIM, V_DIM = 2, 4, 3


def rows(batch: int, count: int, **options: Any) -> tuple[Any, Any]:
    return torch.randn(batch, HEADS, count, K_DIM, **options), torch.randn(batch, HEADS, count, V_DIM, **options)


class Driver:
    """Pairs of a layer of ours and its twin; what was ever shown is kept, and must stay as it was."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        torch.manual_seed(seed)
        self.pairs: list[tuple[Any, Any]] = [(layers.FullLayer(), cache_utils.DynamicLayer())]
        self.seen: list[tuple[Any, Any]] = []

    def check(self) -> None:
        for ours, twin in self.pairs:
            assert ours.get_seq_length() == twin.get_seq_length()
            if ours.get_seq_length():
                assert torch.equal(ours.keys, twin.keys)
                assert torch.equal(ours.values, twin.values)
        for tensor, was in self.seen:
            assert torch.equal(tensor, was), "a row that was shown has been written to"

    def move(self) -> None:
        at = self.chance.randrange(len(self.pairs))
        ours, twin = self.pairs[at]
        length = ours.get_seq_length()
        moves = [self.update] * 6 + [self.copy, self.drop]
        if length:
            moves += [self.crop, self.go_back, self.select, self.reorder, self.reset]
        self.chance.choice(moves)(at, ours, twin)

    def update(self, _at: int, ours: Any, twin: Any) -> None:
        batch = ours.keys.shape[0] if ours.get_seq_length() else self.chance.choice((1, 2))
        with torch.inference_mode(self.chance.random() < 0.2):
            new = rows(batch, self.chance.choice((1, 1, 1, 5, 40)))
            for layer in (ours, twin):
                shown = layer.update(*new)
            self.seen += [(each, each.clone()) for each in ours.fresh]
            assert torch.equal(shown[0], ours.keys)
        self.seen += [(each, each.clone()) for each in (ours.keys, ours.values)]
        self.seen = self.seen[-60:]

    def copy(self, _at: int, ours: Any, twin: Any) -> None:
        if len(self.pairs) < 5:
            self.pairs.append((layers.copied(ours), layers.copied(twin)))

    def drop(self, at: int, _ours: Any, _twin: Any) -> None:
        if len(self.pairs) > 1:
            del self.pairs[at]

    def crop(self, _at: int, ours: Any, twin: Any) -> None:
        away = -self.chance.randint(0, ours.get_seq_length() - 1)
        ours.crop(away)
        twin.crop(away)

    def go_back(self, _at: int, ours: Any, twin: Any) -> None:
        marked = layers.mark(ours)
        new = rows(ours.keys.shape[0], 3)
        ours.update(*new)
        layers.go_back(ours, marked)
        assert torch.equal(ours.keys, twin.keys)

    def select(self, _at: int, ours: Any, twin: Any) -> None:
        chosen = torch.tensor([self.chance.randrange(ours.keys.shape[0]) for _ in range(2)])
        for layer in (ours, twin):
            layer.batch_select_indices(chosen)

    def reorder(self, _at: int, ours: Any, twin: Any) -> None:
        chosen = torch.tensor([self.chance.randrange(ours.keys.shape[0]) for _ in range(ours.keys.shape[0])])
        for layer in (ours, twin):
            layer.reorder_cache(chosen)

    def reset(self, _at: int, ours: Any, twin: Any) -> None:
        if self.chance.random() < 0.2:
            for layer in (ours, twin):
                layer.reset()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_layer_shows_is_what_transformers_shows(seed: int) -> None:
    print("seed", seed)
    driver = Driver(seed)
    for _ in range(200):
        driver.move()
        driver.check()


def test_a_token_copies_its_own_row_only() -> None:
    layer = layers.FullLayer()
    layer.update(*rows(1, 500))
    places = {layer.keys.data_ptr()}
    for _ in range(200):
        layer.update(*rows(1, 1))
        places.add(layer.keys.data_ptr())
    assert layer.get_seq_length() == 700
    assert len(places) == 1


def test_a_copy_of_a_layer_does_not_write_where_the_layer_goes_on() -> None:
    layer = layers.FullLayer()
    layer.update(*rows(1, 10))
    twin = layers.copied(layer)
    assert twin.keys.data_ptr() == layer.keys.data_ptr(), "nothing is copied yet"
    assert layer.room is not None and twin.room is None, "two threads may go on at once"
    ours, theirs = rows(1, 1), rows(1, 1)
    layer.update(*ours)
    twin.update(*theirs)
    assert torch.equal(layer.keys[:, :, 10:], ours[0])
    assert torch.equal(twin.keys[:, :, 10:], theirs[0])
    assert torch.equal(twin.values[:, :, :10], layer.values[:, :, :10])


@pytest.mark.parametrize("other", [{"dtype": torch.bfloat16}, {"requires_grad": True}])
def test_what_cannot_be_copied_behind_is_joined_as_transformers_does(other: dict[str, Any]) -> None:
    layer, twin = layers.FullLayer(), cache_utils.DynamicLayer()
    for new in (rows(1, 4), rows(1, 2, **other), rows(1, 1)):
        pair, wanted = layer.update(*new), twin.update(*new)
        for got, like in zip(pair, wanted):
            assert got.dtype == like.dtype and got.requires_grad == like.requires_grad
            assert torch.equal(got, like)
    if pair[0].requires_grad:
        pair[0].sum().backward()  # no row of it was written to since


def test_rows_of_an_inference_pass_may_be_followed_outside_it() -> None:
    layer = layers.FullLayer()
    with torch.inference_mode():
        layer.update(*rows(1, 4))
    layer.update(*rows(1, 1))
    assert layer.get_seq_length() == 5
