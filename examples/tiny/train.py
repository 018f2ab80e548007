"""Train the tiny model of this folder: gather text, make the tokenizer, train, measure, export.

    ./dev run python examples/tiny/train.py --out examples/tiny --minutes 60

needs `pip install torch tokenizers safetensors numpy tqdm` and the Debian packages named in corpus.PACKAGES. The
length of the run is a wall-clock time: sequences grow from 512 to 4,096 tokens in three phases, and the learning rate
falls linearly over the second half. Seeds are fixed; the number of steps depends on the machine and is written to
metrics.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import numpy.typing as npt
import torch
from model import Llama, Shape, generate, load_checkpoint, save_checkpoint
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm

SEED = 20240
VOCABULARY = 3072
TOKENS_PER_STEP = 8192
# (share of the time at which the phase ends, tokens in a sequence)
PHASES = ((0.37, 512), (0.58, 1024), (1.0, 4096))
DECAY_START = 0.5
WARM_UP_STEPS = 60
PEAK_RATE = 4e-3
PROMPT_TOKENS = 1600
MEASURED_LENGTH = 3072
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(texts: list[str], out: Path) -> Tokenizer:
    """Train a byte-level BPE on `texts`; write tokenizer.json and tokenizer_config.json with the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in corpus.SPECIAL_TOKENS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": corpus.BOS, "eos_token": corpus.END,
        "additional_special_tokens": list(corpus.SPECIAL_TOKENS[2:]), "model_max_length": Shape.context,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def write_prompt(pages: list[corpus.Page], tokenizer: Tokenizer, out: Path) -> int:
    """Write the first paragraphs of the held-out prompt page, up to PROMPT_TOKENS tokens; return their number."""
    page = next(page for page in pages if page.name == corpus.PROMPT_PAGE)
    paragraphs = corpus.as_text(page).removeprefix(corpus.BOS).removesuffix(corpus.END).split("\n\n")
    while len(tokenizer.encode("\n\n".join(paragraphs)).ids) > PROMPT_TOKENS:
        paragraphs.pop()
    text = "\n\n".join(paragraphs)
    (out / "prompt.txt").write_text(text + "\n")
    return len(tokenizer.encode(text).ids)


def batches(tokens: npt.NDArray[np.uint16], length: int, seed: int) -> Iterator[Tensor]:
    """Windows of length + 1 tokens without end: every pass over the stream starts at a new offset, in a new order."""
    rng = np.random.default_rng([seed, length])
    count = TOKENS_PER_STEP // length
    while True:
        starts = np.arange(int(rng.integers(length)), len(tokens) - length, length)
        rng.shuffle(starts)
        for first in range(0, len(starts) - count + 1, count):
            rows = [tokens[start : start + length + 1] for start in starts[first : first + count]]
            yield torch.from_numpy(np.stack(rows).astype(np.int64))


@torch.no_grad()
def measure(model: Llama, documents: list[list[int]], stride: int = 512) -> dict[str, Any]:
    """Mean loss by position over windows of held-out documents, each window inside one document."""
    windows = [d[s : s + MEASURED_LENGTH + 1] for d in documents for s in range(0, len(d) - MEASURED_LENGTH, stride)]
    by_position = torch.stack([model.loss(torch.tensor([window]))[0] for window in windows]).mean(0)
    return {
        "documents": sum(len(d) > MEASURED_LENGTH for d in documents),
        "windows": len(windows),
        "loss_positions_0_512": round(float(by_position[:512].mean()), 4),
        "loss_positions_512_1500": round(float(by_position[512:1500].mean()), 4),
        "loss_positions_1500_3072": round(float(by_position[1500:].mean()), 4),
    }


def make_optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    embedding = {"params": [model.model.embed_tokens.weight], "weight_decay": 0.01}
    return [
        torch.optim.Muon(matrices, lr=PEAK_RATE, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([embedding, {"params": norms, "weight_decay": 0.0}], lr=PEAK_RATE, betas=(0.9, 0.95)),
    ]


class Trainer:
    """Model, optimizers and counts of one run; `state` and `restore` let it go on after an interruption."""

    def __init__(self, tokens: npt.NDArray[np.uint16], minutes: float, compiled: bool) -> None:
        torch.manual_seed(SEED)
        self.model = Llama(Shape(vocab=VOCABULARY))
        self.optimizers = make_optimizers(self.model)
        self.loss = torch.compile(self.model.loss, dynamic=False) if compiled else self.model.loss
        self.streams = {length: batches(tokens, length, SEED) for _, length in PHASES}
        self.seconds = minutes * 60
        self.counts: dict[str, float] = {"steps": 0, "seconds": 0.0, **{f"tokens_at_{n}": 0 for _, n in PHASES}}
        self.smooth_loss = 0.0

    def step(self) -> float:
        """One update on TOKENS_PER_STEP tokens; return its loss in nats."""
        began = time.perf_counter()
        progress = min(self.counts["seconds"] / self.seconds, 1.0)
        length = next(length for end, length in PHASES if progress <= end)
        rate = PEAK_RATE * min((self.counts["steps"] + 1) / WARM_UP_STEPS, (1 - progress) / (1 - DECAY_START), 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss(next(self.streams[length])).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.counts["steps"] += 1
        self.counts[f"tokens_at_{length}"] += TOKENS_PER_STEP
        self.counts["seconds"] += time.perf_counter() - began
        value = float(loss)
        keep = 0.99 if self.smooth_loss else 0.0
        self.smooth_loss = keep * self.smooth_loss + (1 - keep) * value
        return value

    def save(self, path: Path) -> None:
        """Write all that a later run needs to go on (the data order starts anew)."""
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save({"model": self.model.state_dict(), "optimizers": optimizers, "counts": self.counts}, path)

    def restore(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.counts = saved["counts"]


def package_versions() -> dict[str, str]:
    """The installed version of each package of text."""
    command = ["dpkg-query", "-W", "-f=${Package} ${Version}\n", *corpus.PACKAGES]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: line.split()[1] for line in lines}


def export(trainer: Trainer, tokenizer: Tokenizer, documents: list[list[int]], out: Path) -> dict[str, Any]:
    """Write the checkpoint, read it back, measure that and let it write; return the figures and two samples."""
    save_checkpoint(trainer.model, out, corpus.BOS_ID, corpus.END_ID)
    model = load_checkpoint(out)
    asked = f"{corpus.BOS}{corpus.USER}Tell me about transactions.{corpus.END}{corpus.ASSISTANT}"
    samples = {}
    for name, temperature in (("greedy", 0.0), ("temperature 0.7", 0.7)):
        ids = tokenizer.encode(asked, add_special_tokens=False).ids
        samples[name] = tokenizer.decode(generate(model, ids, 120, temperature, SEED, corpus.END_ID))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "shape": asdict(model.shape),
        "training": {**trainer.counts, "smoothed_loss": round(trainer.smooth_loss, 4)},
        "held_out": measure(model, documents),
        "samples": {"prompt": asked, **samples},
    }


def main() -> None:
    """Gather, train, measure, export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the checkpoint")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for training steps")
    parser.add_argument("--threads", type=int, default=2, help="processor threads")
    parser.add_argument("--compile", action="store_true", help="use torch.compile (needs a C++ compiler)")
    parser.add_argument("--state", type=Path, help="file to go on from, where it exists, and to write each 5 minutes")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)

    pages = corpus.load_pages()
    texts = list(corpus.training_texts(pages, SEED))
    tokenizer = make_tokenizer(texts, out)
    prompt_tokens = write_prompt(pages, tokenizer, out)
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    tokens = np.concatenate([np.array(e.ids, dtype=np.uint16) for e in encoded])
    held_out = [page for page in pages if page.held_out]
    documents = [tokenizer.encode(corpus.as_text(page), add_special_tokens=False).ids for page in held_out]
    facts = {
        "seed": SEED, "torch": torch.__version__, "python": platform.python_version(), "threads": arguments.threads,
        "processor": torch.backends.cpu.get_cpu_capability(), "packages": package_versions(),
        "pages": len(pages), "held_out_pages": len(held_out), "training_tokens": len(tokens),
        "characters": sum(map(len, texts)), "prompt_page": corpus.PROMPT_PAGE, "prompt_tokens": prompt_tokens,
        "minutes": arguments.minutes, "phases": PHASES, "tokens_per_step": TOKENS_PER_STEP, "peak_rate": PEAK_RATE,
    }  # fmt: skip
    trainer = Trainer(tokens, arguments.minutes, arguments.compile)
    if arguments.state and arguments.state.exists():
        trainer.restore(arguments.state)
    saved = trainer.counts["seconds"]
    with tqdm(total=round(trainer.seconds), initial=round(saved), unit="s") as bar:
        while trainer.counts["seconds"] < trainer.seconds:
            trainer.step()
            bar.set_postfix_str(f"step {trainer.counts['steps']}, loss {trainer.smooth_loss:.3f}", refresh=False)
            bar.update(min(round(trainer.counts["seconds"]), bar.total) - bar.n)
            if trainer.counts["seconds"] - saved >= 300:
                saved = trainer.counts["seconds"]
                if arguments.state:
                    trainer.save(arguments.state)
                save_checkpoint(trainer.model, out, corpus.BOS_ID, corpus.END_ID)
    metrics = {**facts, **export(trainer, tokenizer, documents, out)}
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    print(json.dumps(metrics["held_out"], indent=2))


if __name__ == "__main__":
    main()
