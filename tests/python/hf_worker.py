"""A process that answers one prompt with a model of a seed and a folder, and prints what it reused and the tokens."""

from __future__ import annotations

import sys

import torch

import hf_models as hf
import kvtrie as kv

model = hf.tiny("llama")
torch.manual_seed(int(sys.argv[2]))
with torch.no_grad():
    model.get_decoder().layers[0].mlp.up_proj.weight.normal_()
with kv.hf.Cache(model, capacity=512, host_bytes="1MiB", disk=sys.argv[1]) as cache, cache.session() as past:
    answer = hf.answer(model, hf.prompt(40), past)
    print(past.reused, answer.sequences.tolist())
