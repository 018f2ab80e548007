# /// script
# dependencies = ["lm-eval[api]==0.4.13"]
# ///
"""lm-eval: scores of continuations, by echo and log probabilities, and texts, of a task of our own."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import shared
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

CITIES = [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Spain", "Madrid"), ("Germany", "Berlin")]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
doc_to_text: "{before}The capital of {{{{country}}}} is"
"""
SCORED = """output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
"""
WRITTEN = """output_type: generate_until
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match, regexes_to_ignore: [".*"]}]
"""


def prepare(folder: Path) -> None:
    """Two tasks of five questions; texts are written behind a long one."""
    choices = [f" {city}" for _, city in CITIES]
    file = folder / "cities.jsonl"
    long = shared.long_text("lm-eval").replace("\n", " ")
    rows = [
        {"before": f"{long} ", "country": country, "choices": choices, "answer": at}
        for at, (country, _) in enumerate(CITIES)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, before, rest in (("scored", "", SCORED), ("written", "{{before}}", WRITTEN)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, before=before, file=file) + rest)


def require_echo() -> None:
    """Raises where the server cannot repeat a prompt with its log probabilities, in words: lm-eval only asks again."""
    body = {"prompt": "A", "max_tokens": 1, "echo": True, "logprobs": 1}
    header = {"content-type": "application/json"}
    request = urllib.request.Request(f"{shared.OPENAI}/completions", json.dumps(body).encode(), header)
    try:
        urllib.request.urlopen(request, timeout=shared.SECONDS).close()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"echo: {error.read().decode()}") from error


require_echo()
with tempfile.TemporaryDirectory() as made:
    os.environ["HF_DATASETS_CACHE"] = str(Path(made) / "cache")
    prepare(Path(made))
    logging.disable(logging.INFO)
    told = simple_evaluate(
        model="local-completions",
        model_args={"model": shared.MODEL, "base_url": f"{shared.OPENAI}/completions", "max_length": 8192},
        tasks=["scored", "written"],
        task_manager=TaskManager(include_path=made, include_defaults=False),
        bootstrap_iters=0,
    )
assert told["results"]["scored"]["acc,none"] >= 0.8, told["results"]
for sample in told["samples"]["scored"]:
    scores = [float(score) for ((score, _),) in sample["resps"]]
    assert len(scores) == len(CITIES) and all(score < 0 for score in scores), scores
assert all(sample["resps"][0][0].strip() for sample in told["samples"]["written"])
