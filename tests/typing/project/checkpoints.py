"""Models of checkpoints, and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typing_extensions import assert_type

import kvtrie as kv
from kvtrie import models


def load(path: Path) -> models.Model:
    assert_type(models.architectures(), list[str])
    assert_type(models.load_tokenizer(path), models.Tokenizer | None)
    assert_type(models.default.choose("tiny").path, str)
    assert_type(models.describe(path), dict[str, models.Settled])
    models.from_weights({"model_type": "llama"}, {"lm_head.weight": np.zeros((2, 2), np.float32)}, dtype="float16")
    return kv.models.load(path, "cpu", "q8_0", progress=True)


def read_model(model: models.Model) -> None:
    assert_type(model.family + model.dtype + model.fingerprint, str)
    assert_type(model.config, models.ModelConfig)
    assert_type(model.device, kv.Device)
    assert_type(model.nbytes, int)
    assert_type(model.losses, dict[str, float])
    assert_type(model.graphs, kv.ops.StepGraphs)
    assert_type(model.replays, bool)
    assert_type(model.account, dict[str, models.Settled])
    assert_type(model.has_tokenizer, bool)
    assert_type(model.tokenizer, models.Tokenizer)
    assert_type(model.end_tokens, tuple[int, ...])
    assert_type(model.token_texts, kv.trie.TokenTexts | None)
    assert_type(model.prefix_cache, kv.PrefixCache)


def read_account(settled: models.Settled) -> None:
    assert_type(settled.read, dict[str, object])
    assert_type(settled.neutral, dict[str, object])
    assert_type(settled.unknown, dict[str, object])


def use_model(model: models.Model, step: kv.Step) -> kv.PrefixCache:
    assert_type(model(step, all_rows=True), kv.Tensor)
    messages = [{"role": "user", "content": "hello"}]
    assert_type(model.chat(messages, tools=[], template={"a": 1}, max_tokens=8, temperature=0.5), kv.Generation[str])
    assert_type(model.complete("a text", stop=["\n"], cache=None, namespace="anna", chunk=64), kv.Generation[str])
    assert_type(model.chat_tokens(messages, tools=None, template=None), list[int])
    model.warm_up("float16", lambda done, total: print(done, total), wait=True)
    caches = model.caches(capacity=1024, dtype="float32", window_capacity=512, memory=600, warm_up=False)
    return kv.PrefixCache(caches, fingerprint=model.fingerprint)


def read_config(config: models.ModelConfig) -> None:
    assert_type(config.model_type + config.digest(), str)
    assert_type(config.vocab_size + config.hidden_size + config.intermediate_size + config.head_dim, int)
    assert_type(config.num_hidden_layers + config.num_attention_heads + config.num_key_value_heads, int)
    assert_type(config.max_position_embeddings, int)
    assert_type(config.rms_norm_eps + config.rope_theta, float)
    assert_type(config.tie_word_embeddings or config.attention_bias or config.mlp_bias, bool)
    assert_type(config.bos_token_id, int | None)
    assert_type(config.eos_token_ids, tuple[int, ...])
    assert_type(config.position_limit(), int | None)
    print(config.rope_scaling)


def use_tokenizer(tokenizer: models.Tokenizer, stream: models.Detokenizer, folder: Path) -> None:
    assert_type(tokenizer.vocab_size, int)
    assert_type(tokenizer.encode("a text", add_special_tokens=False), list[int])
    assert_type(tokenizer.decode([1, 2], skip_special_tokens=True), str)
    assert_type(tokenizer.token_id("<s>"), int | None)
    assert_type(tokenizer.special_id("<s>"), int | None)
    assert_type(tokenizer.stream(), models.Detokenizer)
    assert_type(stream.feed(1) + stream.finish(), str)
    messages = [{"role": "user", "content": "hello"}]
    assert_type(tokenizer.apply_chat_template(messages, add_generation_prompt=True), list[int])
    assert_type(tokenizer.apply_chat_template(messages, tokenize=False, enable_thinking=False), str)
    assert_type(tokenizer.apply_chat_template(messages, chat_template="tool_use"), list[int])
    assert_type(tokenizer.chat_template, str | None)
    assert_type(tokenizer.chat_templates, dict[str, str])
    assert_type(tokenizer.template("default", tools=[]).wants().sentences(), list[str])
    assert_type(tokenizer.special, dict[str, str])
    assert_type(models.Tokenizer.load(folder), models.Tokenizer | None)
    print(tokenizer.raw)
