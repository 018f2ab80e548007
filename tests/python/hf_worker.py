"""A process that answers one prompt with a model of a seed and a folder, and prints what it reused and the tokens."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch

import hf_models as hf
import kvtrie as kv


def answered(folder: Path, seed: int) -> str:
    model = copy.deepcopy(hf.tiny("llama"))
    torch.manual_seed(seed)
    with torch.no_grad():
        model.get_decoder().layers[0].mlp.up_proj.weight.normal_()
    with kv.hf.Cache(model, capacity=512, host_bytes="1MiB", disk=folder) as cache, cache.session() as past:
        answer = hf.answer(model, hf.prompt(40), past)
        return f"{past.reused} {answer.sequences.tolist()}"


if __name__ == "__main__":
    print(answered(Path(sys.argv[1]), int(sys.argv[2])))
