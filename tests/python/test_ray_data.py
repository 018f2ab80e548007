"""Batches with Ray Data: the answers are those of one prompt alone, and what prompts share is computed once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import kvtrie as kv
import ray_models
from bounds import LOGPROBS, close
from circles import SOAK
from kvtrie.ray.engine import Engine
from kvtrie.ray.prompts import KEY, Prompts, encode, key_of, tokens_of
from kvtrie.ray.workers import Answering, Work, Writing
from processes import PATIENCE, run_python, started_python, wait_for
from ray_cluster import ray_cluster  # noqa: F401
from redis_server import RedisServer
from serving import TINY
from shared_prompts import least_possible, shared_prompts

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),  # its own defaults, as it sets them
]

SEED = 7
GROUPS, PROMPTS = 40, 2000 if SOAK else 800


@pytest.fixture(name="ray")
def _ray(ray_cluster: Any) -> Any:  # noqa: F811
    ray_cluster.data.DataContext.get_current().enable_progress_bars = False
    return ray_cluster


def rows_of(dataset: Any) -> list[Any]:
    return sorted(dataset.take_all(), key=lambda row: row["id"])


def dataset_of(ray: Any, column: str, values: list[Any], **more: list[Any]) -> Any:
    rows = [
        {"id": at, column: value, **{name: own[at] for name, own in more.items()}} for at, value in enumerate(values)
    ]
    return ray.data.from_items(rows, override_num_blocks=4)


# --- keys and seeds ---------------------------------------------------------------------------------------------------


def test_keys_sort_as_tokens_do_and_have_them() -> None:
    random = np.random.default_rng(SEED)
    lists = [random.integers(0, 2**31 - 1, random.integers(1, 6)).tolist() for _ in range(300)]
    lists += [each[:-1] for each in lists if len(each) > 1] + [[0], [255], [256], [65535, 1], [65536]]
    keys = [key_of(np.array(each, np.int32)) for each in lists]
    assert [tokens_of(key).tolist() for key in sorted(keys)] == sorted(lists)


def test_a_row_has_a_seed_of_its_own() -> None:
    seeds = {kv.ray.row_seed(seed, tokens) for seed in (0, 1) for tokens in ([1], [2], [1, 2], [258])}
    assert len(seeds) == 8 and kv.ray.row_seed(3, [5, 6]) == kv.ray.row_seed(3, np.array([5, 6]))


# --- what an actor does, without Ray ----------------------------------------------------------------------------------


@contextmanager
def answering(model: Any, errors: Optional[str] = None, most: int = 2, draft: Any = None) -> Iterator[Answering]:
    work = Work("ray.generate", "generated", errors, "default", 8, 512)
    worker = Answering(Engine(model, {}), work, Writing(most, None, False, {}, None, draft))
    try:
        yield worker
    finally:
        worker.close()


def answered(prompts: list[Any], model: Any, batch: int = 10**6, **options: Any) -> list[Any]:
    """Rows as one actor answers them, in blocks of ``batch``, in the order in which it is given them."""
    pyarrow = pytest.importorskip("pyarrow")
    given = Prompts("ray.generate", "prompt", None, {}, ("generated",), keeps_errors="errors" in options)
    table = encode(pyarrow.table({"id": [*range(len(prompts))], "prompt": prompts}), given)
    table = table if "errors" in options else table.sort_by(KEY)
    with answering(model, **options) as worker:
        done = [worker(table.slice(at, batch)).to_pylist() for at in range(0, len(table), batch)]
    return sorted((row for block in done for row in block), key=lambda row: row["id"])


def test_an_actor_computes_what_is_new_to_sorted_prompts() -> None:
    """Within 5 % of the least possible, in a cache that has room for two of the eight prefixes, and rightly."""
    prompts = shared_prompts(8, 64)
    model = ray_models.naming()[0]
    rows = answered(prompts, ray_models.naming, batch=16)
    assert [row["generated"] for row in rows] == [model.answer("default", prompt, 2) for prompt in prompts]
    computed = sum(row["prompt_tokens"] - row["reused"] for row in rows)
    assert least_possible(prompts) <= computed <= 1.05 * least_possible(prompts)


def test_an_actor_drafts_and_says_the_same() -> None:
    prompts = [[*range(5, 40), *range(5, 12)], [*range(5, 40)], [*range(9, 30), 5, 6, 7]]
    plain = answered(prompts, TINY, most=16)
    with answering(TINY, most=16, draft=["prompt", "suffix"]) as worker:
        assert worker.batcher._batch.made_of[0].mtp is None
    drafted = answered(prompts, TINY, most=16, draft=["prompt", "suffix"])
    assert [row["generated_tokens"] for row in drafted] == [row["generated_tokens"] for row in plain]
    for wrong, said in ((5, "draft: got 5"), (["tree", "none"], "draft: got 'none', allowed prompt, tree")):
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=said):
            kv.ray.generate(None, TINY, draft=wrong)  # type: ignore[arg-type]


# --- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "group"),
    [
        pytest.param(2, True, marks=pytest.mark.ci),
        pytest.param(1, True, marks=pytest.mark.soak),
        pytest.param(1, False, marks=pytest.mark.soak),
    ],
)
def test_what_prompts_share_is_computed_once(ray: Any, replicas: int, group: bool) -> None:
    """Within 5 % of the least possible, in a cache that has room for two of the 40 prefixes."""
    prompts = shared_prompts(GROUPS, PROMPTS)
    dataset = dataset_of(ray, "prompt", prompts)
    answers = kv.ray.generate(dataset, ray_models.blank, max_tokens=1, replicas=replicas, group=group)
    rows = rows_of(answers)
    least, everything = least_possible(prompts), sum(map(len, prompts))
    computed = sum(row["prompt_tokens"] - row["reused"] for row in rows)
    print(f"seed {SEED}: {replicas} actors, grouped {group}: {computed} computed, {computed / least:.3f} of the least")
    assert [row["prompt_tokens"] for row in rows] == [len(prompt) for prompt in prompts]
    assert least <= computed <= everything
    assert computed <= 1.05 * least if group else computed > 3 * least


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_answers_are_those_of_each_prompt_alone(ray: Any) -> None:
    prompts = shared_prompts(5, 40, 20, 40)
    model = ray_models.naming()[0]
    dataset = dataset_of(ray, "ids", prompts)
    answers = kv.ray.generate(
        dataset,
        ray_models.naming,
        prompt="ids",
        max_tokens=3,
        batch_size=7,
        replicas=2,
        ordered=True,
        on_error="column",
    )
    rows = answers.take_all()
    assert [row["id"] for row in rows] == list(range(len(prompts)))
    assert [row["generated"] for row in rows] == [model.answer("default", prompt, 3) for prompt in prompts]
    assert {row["finish_reason"] for row in rows} == {"length"} and {len(row["generated_tokens"]) for row in rows} == {
        3
    }
    assert {row["error"] for row in rows} == {None}
    assert not [name for name in rows[0] if name.startswith("__kvtrie")]


@pytest.mark.ci
def test_a_real_model_is_asked_in_messages_with_a_seed_of_each_row(ray: Any) -> None:
    """As ``kv.generate`` is without Ray."""
    model = ray_models.tiny()
    chats = [[{"role": "user", "content": f"What is a {word}?"}] for word in ("server", "lock", "query", "server")]
    sampling: Any = {"max_tokens": 6, "temperature": 0.9, "logprobs": 1}
    dataset = dataset_of(ray, "chat", chats)
    asked = kv.ray.generate(dataset, str(TINY), prompt="chat", output="answer", capacity=1024, seed=5, **sampling)
    for row, chat in zip(rows_of(asked), chats):
        ids = model.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        alone = kv.generate(model, ids, seed=kv.ray.row_seed(5, ids), **sampling)
        assert list(row["answer_tokens"]) == list(alone)
        close(row["answer_logprobs"], [each.logprob for each in alone.logprobs], LOGPROBS, each=True)
        assert row["answer"].strip() in model.tokenizer.decode(row["answer_tokens"])


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_scores_are_those_of_kv_score(ray: Any) -> None:
    model = ray_models.tiny()
    prompts = ["A server is", "A lock is"]
    choices = [[" asked", " a door", " held by one"], [" held", " asked for", " a query"]]
    dataset = dataset_of(ray, "prompt", prompts, choices=choices)
    rows = rows_of(kv.ray.score(dataset, str(TINY), capacity=1024))
    for row, prompt, texts in zip(rows, prompts, choices):
        expected = kv.score(model, prompt, texts)
        close(row["scores"], [each.logprob for each in expected], LOGPROBS, each=True)
        assert [len(each) for each in row["scores_logprobs"]] == [len(each.tokens) for each in expected]
        assert list(row["scores_greedy"]) == [each.greedy for each in expected]
        assert row["scores_best"] == int(np.argmax([each.logprob for each in expected]))


# --- how they end -----------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_an_actor_that_is_killed_is_replaced_and_its_block_answered(ray: Any, tmp_path: Any) -> None:
    prompts = shared_prompts(3, 24, 20, 30)
    model = ray_models.naming()[0]
    mark = tmp_path / "killed"
    dataset = dataset_of(ray, "prompt", prompts)
    rows = rows_of(kv.ray.generate(dataset, ray_models.dying(mark, 6), max_tokens=2, batch_size=8))
    assert mark.exists()
    assert [row["generated"] for row in rows] == [model.answer("default", prompt, 2) for prompt in prompts]


def test_what_a_row_cannot_have_is_its_error() -> None:
    """What the stages do to a table, in this process."""
    prompts = [[1, 2, 3], [], [-4], [*range(1, 1000)], [10**6], [7, 8]]
    rows = answered(prompts, ray_models.naming, errors="error")
    assert [row["error"] is None for row in rows] == [True, False, False, False, False, True]
    assert [row["generated"] is None for row in rows] == [False, True, True, True, True, False]
    for row, said in zip(rows[1:5], ("0 tokens", "-4", "cells", "token id 1000000")):
        assert said in row["error"]


def test_errors_are_raised_unless_a_column_is_asked_for() -> None:
    """What the stages do to a table, in this process."""
    pyarrow = pytest.importorskip("pyarrow")
    prompts = Prompts("ray.generate", "prompt", None, {}, ("generated",), keeps_errors=False)
    with pytest.raises(kv.errors.ArgumentError, match="0 tokens"):
        encode(pyarrow.table({"prompt": [[1, 2], []]}), prompts)
    with pytest.raises(kv.errors.ArgumentError, match="tokenizer"):
        encode(pyarrow.table({"prompt": ["a text"]}), prompts)
    with pytest.raises(kv.errors.ArgumentError, match="generated"):
        encode(pyarrow.table({"prompt": [[1]], "generated": [1]}), prompts)
    with pytest.raises(kv.errors.ArgumentError, match="allowed question"):
        encode(pyarrow.table({"question": [[1]]}), prompts)
    with answering(ray_models.naming) as worker, pytest.raises(kv.errors.ArgumentError, match="cells"):
        worker(encode(pyarrow.table({"prompt": [[1, 2], [*range(1, 1000)]]}), prompts))
    assert worker.cache.closed


@pytest.mark.soak
@pytest.mark.parametrize("kept", ["disk", "store"])
def test_another_batch_finds_what_one_computed(ray: Any, server: RedisServer, tmp_path: Path, kept: str) -> None:
    """Actors that ended left it in their folders, or in the store, where any actor finds it."""
    prompts = shared_prompts(4, 24, 300, 400)
    options: Any = {"capacity": 2048, "host_bytes": "64MiB", "max_tokens": 2, "temperature": 0}
    options |= {"disk": tmp_path / "state"} if kept == "disk" else {"store": server.url()}
    actors = tmp_path / "actors"
    actors.mkdir()

    def batch() -> list[Any]:
        rows = rows_of(kv.ray.generate(dataset_of(ray, "prompt", prompts), ray_models.noted(actors), **options))
        wait_for(lambda: not any(Path("/proc", each.name).exists() for each in actors.iterdir()))
        return rows

    first, second = batch(), batch()
    assert [list(row["generated_tokens"]) for row in first] == [list(row["generated_tokens"]) for row in second]
    computed = [sum(row["prompt_tokens"] - row["reused"] for row in rows) for rows in (first, second)]
    assert computed[0] >= least_possible(prompts)
    if kept == "disk":
        assert computed[1] == len(prompts), "the last token of each: its logits are asked for"
    else:
        assert computed[1] < computed[0] / 4


INTERRUPTED = """
import os
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Ray prints now and then
import kvtrie as kv, ray_models
from ray_cluster import cluster
with cluster() as ray:
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"prompt": [at, 2, 3, 4]} for at in range(2000)]
    answers = kv.ray.generate(ray.data.from_items(rows), ray_models.slow, batch_size=4, max_tokens=4, group=False)
    try:
        for row in answers.iter_rows():
            print("a row", file=said, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=said, flush=True)
    del answers, row
    few = kv.ray.generate(ray.data.from_items(rows[:8]), ray_models.blank, max_tokens=1).take_all()
    print(len(few), "rows", file=said, flush=True)
"""


@pytest.mark.soak
def test_ctrl_c_ends_a_batch_and_the_next_one_runs() -> None:
    with started_python("-c", INTERRUPTED) as process:
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            assert process.stdout.readline() == "a row\n", process.stderr.read()
            process.send_signal(signal.SIGINT)
            said = process.stdout.read().splitlines()
            assert [line for line in said if line != "a row"] == ["interrupted", "8 rows"], process.stderr.read()
            assert process.wait(PATIENCE) == 0
        finally:
            late.cancel()


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"replicas": 0}, "replicas"),
        ({"batch_size": 0}, "batch_size"),
        ({"group": 1}, "group"),
        ({"on_error": "ignore"}, "on_error"),
        ({"temperature": -1}, "temperature"),
        ({"tempreature": 1}, "tempreature"),
        ({"seed": 1, "seed_column": "s"}, "seed"),
        ({"model": 3}, "model"),
        ({"tokenizer": 3}, "tokenizer"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(wrong: Any, named: str) -> None:
    options = {"model": ray_models.blank, **wrong}
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=named):
        kv.ray.generate(None, options.pop("model"), **options)


def test_without_ray_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['ray'] = None\nimport kvtrie as kv\nkv.ray.generate(None, 'm')"
    result = run_python("-c", program)
    assert result.returncode != 0 and "NotSupportedError: [ray] needs ray: pip install 'kvtrie[ray]'" in result.stderr
