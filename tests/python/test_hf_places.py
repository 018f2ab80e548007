"""What a transformers model computed, found again: in another process, in another session, never by another model."""

from __future__ import annotations

import copy
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hf_models as hf  # noqa: E402
from hf_worker import answered  # noqa: E402
from processes import ROOT, run_python  # noqa: E402

WORKER = Path(__file__).parent / "hf_worker.py"
SMOLLM2 = os.environ.get("KVTRIE_SMOLLM2", "")


@pytest.mark.ci
def test_two_processes_share_a_saved_prompt(tmp_path: Path) -> None:
    """And a model of the same config finds nothing there, of which one matrix has other numbers."""
    first = answered(tmp_path / "disk", 1)
    assert first.startswith("0 ")
    assert answered(tmp_path / "disk", 2).startswith("0 ")
    second = run_python(WORKER, tmp_path / "disk", 1)
    assert second.returncode == 0, second.stderr
    assert second.stdout == f"39 {first[2:]}\n"


def test_fingerprints_are_of_config_and_every_number() -> None:
    model = copy.deepcopy(hf.tiny("llama"))
    same = kv.hf.fingerprint(model)
    assert kv.hf.fingerprint(hf.tiny("llama")) == same
    model.set_attn_implementation("eager")  # how attention is computed is no part of it
    assert kv.hf.fingerprint(model) == same
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": 77.0}
    assert kv.hf.fingerprint(model) != same
    twin = copy.deepcopy(hf.tiny("llama"))
    with torch.no_grad():
        twin.get_decoder().layers[1].mlp.down_proj.weight[-1, -1] += 1e-3
    assert kv.hf.fingerprint(twin) != same
    assert kv.hf.fingerprint(hf.tiny("llama").to(torch.float32)) == same


def test_namespaces_share_nothing() -> None:
    with kv.hf.Cache(hf.tiny("llama"), capacity=256) as cache:
        for namespace, reused in (("a", 0), ("b", 0), ("a", 19)):
            with cache.session(namespace=namespace) as past:
                hf.answer(cache.model, hf.prompt(20), past)
                assert past.reused == reused


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: Any) -> None:
    """K and V return to the bit, whatever the model computes in."""
    model, ids = copy.deepcopy(hf.tiny("llama")).to(dtype), hf.prompt(20)
    with kv.hf.Cache(model, capacity=256) as cache, torch.no_grad():
        own = transformers.DynamicCache(config=model.config)
        model(ids[:, :19], cache=own)
        with cache.session() as past:
            model(ids[:, :19], cache=past)
        with cache.session(ids) as past:
            for ours, theirs in zip(past.layers, own.layers):
                assert torch.equal(ours.keys, theirs.keys)
                assert torch.equal(ours.values, theirs.values)
                assert ours.keys.dtype is dtype


@pytest.mark.skipif(not SMOLLM2, reason="KVTRIE_SMOLLM2 names no file; `python -m kvtrie download` gets it")
@pytest.mark.soak
@pytest.mark.parametrize("form", ["copy", "cells"])
def test_smollm2(form: str) -> None:
    file = Path(SMOLLM2)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32").eval()
    text = torch.randint(100, 40000, (1, 60), generator=torch.Generator().manual_seed(1))
    with kv.hf.Cache(model, capacity=256, form=form) as cache:
        for reused, ids in ((0, text), (59, text), (40, torch.cat([text[:, :40], text[:, 50:]], 1))):
            with cache.session() as past:
                got, wanted = (hf.answer(model, ids, each, tokens=4) for each in (past, None))
                hf.close(got, wanted)
                assert past.reused == reused


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(hf.VOCAB)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w95")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} w1 {% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    hf.tiny("llama").save_pretrained(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import transformers_chat

    for reused in ((0, 11), (6, 14)):  # again: from the folder
        monkeypatch.setattr(sys, "argv", ["chat", str(tmp_path), "--disk", str(tmp_path / "disk"), "--tokens", "5"])
        monkeypatch.setattr(sys, "stdin", io.StringIO("w2 w3 w4 w5 w6 w7\nw8\n"))
        transformers_chat.main()
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  reused")]
        assert [int(line.split()[1]) for line in lines] == list(reused)
