"""Every key of a GGUF file is read, does not matter, or is refused by name; what no list names is told."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_oracle
import gguf_oracle_forms
import gguf_sweep
import gguf_table
import kvtrie as kv
from bounds import LOGITS, close
from circles import CIRCLE
from gguf_files import GOLDENS, Kind, checkpoint, rewrite, write
from gguf_sweep import BASES, OUTCOMES, Case, Type
from kvtrie.models import gguf_settings
from kvtrie.models.gguf_settings import TOKENIZERS, file_settings
from kvtrie.models.settings import neutral, setting_of
from test_models import all_logits

TOKENS = np.load(GOLDENS / "tokens.npy")
COUNT = {"test": 6, "ci": 15, "soak": 150}[CIRCLE]  # of each file
QUICK = (*BASES, "gpt-oss", "mistral3", "phi3")  # one for each kind of part; the others are played in CI
SEED = 1


def test_every_architecture_is_swept() -> None:
    """Each that is read, and each kind of file that another family computes, has a file and an oracle."""
    assert {*kv.models.gguf.ARCHITECTURES} <= {*gguf_sweep.names()}
    assert {*gguf_sweep.names()} == {*gguf_oracle.MODEL_TYPES, *gguf_oracle_forms.FORMS}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.ci) for name in gguf_sweep.names()]
)
def test_the_sweep(name: str, tmp_path: Path) -> None:
    """Files with one key changed are the model that llama.cpp's rules make of them, or refused, or what they were."""
    print(f"seed {SEED}")
    table, wrong = gguf_sweep.play(gguf_sweep.sample(SEED, COUNT, [name]), tmp_path)
    assert not wrong, "\n".join(wrong)
    found = table[name]
    assert set(found) <= {*OUTCOMES} and found.total() == COUNT
    assert COUNT < 15 or min(found["refused"], found["equal"] + found["neutral"]) > COUNT // 40, found


@pytest.mark.parametrize("architecture", sorted(each for each in kv.models.gguf.ARCHITECTURES if "/" not in each))
def test_every_key_of_the_package_is_in_a_list(architecture: str) -> None:
    """What ``gguf`` has a name for, of this architecture, of any file and of each kind of vocabulary."""
    form = kv.models.gguf.ARCHITECTURES[architecture][1]
    for kind in TOKENIZERS:
        settings = file_settings(architecture, form, kind, False)
        for key in gguf_sweep.keys_of(architecture):
            assert setting_of(key, settings) is not None, key
        for name, key in vars(gguf.constants.Keys.Tokenizer).items():
            if not name.startswith("_"):
                assert setting_of(key.replace("{name}", "other"), settings) is not None, key


def test_a_key_that_is_called_read_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep fails where a list claims more than is done, or less."""
    case = Case("llama", {"llama.rope.scaling.finetuned": (True, Type.BOOL, None)})
    assert gguf_sweep.judge(case, tmp_path / "case.gguf")[0] == "neutral"
    lists = gguf_settings.ARCHITECTURE
    monkeypatch.setitem(lists, ".rope.scaling.finetuned", gguf_settings.read("not at all"))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="finetuned: called read"):
        gguf_sweep.judge(case, tmp_path / "case.gguf")
    monkeypatch.undo()
    monkeypatch.setitem(lists, ".vocab_size", neutral("it is asked for"))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="vocab_size: asked for"):
        gguf_sweep.judge(case, tmp_path / "case.gguf")


def test_the_oracle_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passed unseen before there were lists is found to be wrong without them."""
    monkeypatch.setattr(kv.models.gguf, "settle", lambda *_: None)
    monkeypatch.setattr(kv.models.gguf.rope, "_check_attention", lambda *_: None)
    for key, value in (("attention.causal", False), ("logit_scale", 0.5), ("attn_logit_softcapping", 50.0)):
        kind = Type.BOOL if isinstance(value, bool) else Type.FLOAT32
        case = Case("qwen3", {f"qwen3.{key}": (value, kind, None)})
        assert gguf_sweep.judge(case, tmp_path / "case.gguf") == ("wrong", "must be refused, but loads")


def test_unknown_keys_are_told_once_by_name(tmp_path: Path) -> None:
    path = write(*checkpoint("llama-gqa-tied"), tmp_path / "model.gguf")
    wanted = kv.models.load(path).fingerprint

    def change(values: dict[str, Any], _: Any) -> None:
        for key in ("llama.attention.novelty", "somebody.said", "general.shoe_size"):
            values[key] = ([Type.UINT32], 1)

    rewrite(path, change)
    with pytest.warns(kv.errors.IgnoredWarning) as told:
        assert kv.models.load(path).fingerprint == wanted
    assert len(told) == 1
    assert "nothing here knows of general.shoe_size, llama.attention.novelty, somebody.said" in str(told[0].message)


def test_the_account_has_no_second_vocabulary(tmp_path: Path) -> None:
    """It outlives the loading, and the tokenizer has the tokens: a list longer than any model is deep is counted."""
    tokens = ["a", "b", "ab", *(f"<{index}>" for index in range(3, 1100))]

    def vocabulary(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * 1100)
        writer.add_token_merges(["a b"])

    config, weights = checkpoint("llama-gqa-tied")
    table = np.zeros((1100, config.hidden_size), np.float32)
    config = dataclasses.replace(config, vocab_size=1100)
    file = write(
        config,
        {**weights, "model.embed_tokens.weight": table},
        tmp_path / "model.gguf",
        tokenizer=vocabulary,
    )
    read = kv.models.describe(file)["model.gguf"].read
    assert read["tokenizer.ggml.tokens"] == read["tokenizer.ggml.token_type"] == "1100 entries"
    assert read["tokenizer.ggml.merges"] == ["a b"]
    assert kv.models.load_tokenizer(file).raw.get_vocab() == {token: index for index, token in enumerate(tokens)}


def test_the_page_is_current() -> None:
    """If not: ./dev run python tests/python/gguf_table.py."""
    assert gguf_table.PAGE.read_text(encoding="utf-8") == gguf_table.page()


def test_the_table_names_every_key() -> None:
    named = set(re.findall(r"`([^`]+)`", gguf_table.table()))
    lists = [gguf_settings.GENERAL, gguf_settings.ARCHITECTURE, gguf_settings.EXPERTS, *TOKENIZERS.values()]
    assert {key for settings in lists for key in settings} <= named


# ---- frequencies -----------------------------------------------------------------------------------------------------


def frequencies(path: Path, factors: list[float], **keys: tuple[Any, Any]) -> Any:
    """Logits of a Llama whose frequencies are divided by ``factors``; ``keys``: of rope.scaling."""
    write(*checkpoint("llama-gqa-tied"), path)

    def change(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["rope_freqs.weight"] = (np.array(factors, np.float32), Kind.F32)
        values.update({f"llama.rope.scaling.{key}": ([kind], value) for key, (value, kind) in keys.items()})

    return all_logits(kv.models.load(rewrite(path, change), dtype="float32"), TOKENS, 72)


def test_factors_and_linear_scaling_are_applied_one_after_the_other(tmp_path: Path) -> None:
    half = [1.0, 1.5, 2.0, 3.0, 3.5, 4.0, 5.0, 6.0]
    keys = {"type": ("linear", Type.STRING), "factor": (4.0, Type.FLOAT32)}
    wanted = frequencies(tmp_path / "one.gguf", [4 * each for each in half])
    close(frequencies(tmp_path / "two.gguf", half, **keys), wanted, LOGITS)
    with pytest.raises(kv.errors.FormatError, match=r"rope\.scaling\.type: got 'yarn', allowed none or linear beside"):
        frequencies(tmp_path / "three.gguf", half, **{**keys, "type": ("yarn", Type.STRING)})


@pytest.mark.parametrize("architecture", [each for each in BASES if each != "llama"])
def test_factors_of_other_architectures_are_refused(architecture: str, tmp_path: Path) -> None:
    """llama.cpp has them in Llama alone, and refuses such files, too."""
    name, changes = BASES[architecture]
    path = write(*checkpoint(name, **changes), tmp_path / "model.gguf")
    rewrite(path, lambda _, tensors: tensors.update({"rope_freqs.weight": (np.ones(8, np.float32), Kind.F32)}))
    with pytest.raises(kv.errors.FormatError, match=r"no use for: rope_freqs\.weight"):
        kv.models.load(path)


# ---- tensors ---------------------------------------------------------------------------------------------------------

EXTRA = (
    *("blk.0.attn_q.scale", "blk.0.attn_q.input_scale", "blk.0.attn_q.weight.lora_b", "blk.0.rope_freqs.weight"),
    *("blk.0.attn_rot_embd.weight", "blk.0.attn_sinks.weight", "blk.0.ffn_up.bias", "blk.0.ffn_sub_norm.weight"),
    *("output.bias", "cls.output.weight", "dense_2.weight", "position_embd.weight", "token_embd_norm.weight"),
    *("rope_factors_long.weight", "rope_factors_short.weight", "v.blk.0.attn_q.weight", "mm.0.weight"),
)


@pytest.mark.parametrize("architecture", BASES)
def test_a_tensor_without_a_use_is_refused(architecture: str, tmp_path: Path) -> None:
    base = gguf_sweep.base(architecture)
    for extra in EXTRA:
        arrays = {**base.arrays, extra: np.ones(8, np.float32)}
        with pytest.raises(kv.errors.FormatError, match=re.escape(extra)):
            kv.models.gguf.read(gguf_sweep.save(architecture, base.values, arrays, tmp_path / "model.gguf"))


def test_a_stored_block_is_no_less_than_a_layer(tmp_path: Path) -> None:
    """Fewer layers than blocks would leave some out unseen; so would saying that they predict further tokens."""
    path, base = tmp_path / "model.gguf", write(*checkpoint("llama-gqa-tied"), tmp_path / "base.gguf")
    for key, value, message in (
        ("block_count", 1, r"llama\.block_count: got 1, allowed 2: there are tensors of blk\.1"),
        ("nextn_predict_layers", 1, r"nextn_predict_layers: got 1, allowed 0 where there is no blk\.1\.nextn\.eh_proj"),
    ):
        path.write_bytes(base.read_bytes())
        change = {f"llama.{key}": ([Type.UINT32], value)}
        with pytest.raises(kv.errors.FormatError, match=message):
            kv.models.load(rewrite(path, lambda values, _, change=change: values.update(change)))


# ---- what a file is --------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str | None, dict[str, Any], list[str], str]] = {
    "an adapter": ("llama", {"general.type": "adapter"}, ["blk.0.attn_q.weight.lora_a"], "a LoRA adapter"),
    "an old adapter": ("llama", {"adapter.type": "lora"}, ["blk.0.attn_q.weight.lora_a"], "a LoRA adapter"),
    "a projector": ("clip", {"general.type": "mmproj"}, ["v.patch_embd.weight"], r"mmproj"),
    "an old projector": ("clip", {"clip.has_vision_encoder": True}, ["mm.0.weight"], r"mmproj"),
    "statistics": (None, {"general.type": "imatrix", "imatrix.chunk_count": 3}, ["blk.0.x.in_sum2"], "imatrix"),
    "statistics without a type": (None, {"imatrix.chunk_size": 512}, ["blk.0.x.counts"], "imatrix"),
    "a control vector": ("controlvector", {"controlvector.layer_count": 2}, ["direction.1"], "a control vector"),
    "a vocabulary": ("llama", {"tokenizer.ggml.tokens": ["a", "b"]}, [], "a vocabulary alone"),
    "something new": ("llama", {"general.type": "dream"}, ["x"], r"general\.type: got 'dream'; allowed a model"),
    "a number": ("llama", {"general.type": 7}, ["x"], r"general\.type: got 7; allowed a model"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_model_is_called_by_its_name(name: str, tmp_path: Path) -> None:
    architecture, keys, tensors, message = KINDS[name]
    path = tmp_path / "file.gguf"
    writer = gguf.GGUFWriter(path, architecture or "none")
    if architecture is None:
        writer.kv_data[0].pop("general.architecture")
    for key, value in keys.items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](key, value)
    for tensor in tensors:
        writer.add_tensor(tensor, np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(kv.errors.FormatError, match=message) as error:
        kv.models.load(path)
    assert str(error.value).startswith(f"[models.load] {path}: ") and str(error.value).count("\n") == 0


OTHER_FORMATS = {
    "an importance matrix": (
        b"\x02\0\0\0\x13\0\0\0blk.0.attn_q.weight" + b"\x05\0\0\0\x20\0\0\0" + bytes(128),
        r"got an importance matrix \(imatrix\)",
    ),
    "an old adapter": (b"algg\x01\0\0\0" + bytes(64), "got a LoRA adapter in the format before GGUF"),
    "an old model": (b"tjgg\x03\0\0\0" + bytes(64), r"got a model in the format before GGUF \(ggjt\)"),
    "safetensors": (b'\x02\0\0\0\0\0\0\0{"}', "got a safetensors file"),
    "torch": (b"PK\x03\x04" + bytes(64), "got a zip archive"),
    "nothing known": (b"\x02\0\0\0\x13\0\0\0" + bytes(64), "got another kind of file"),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_other_formats_are_called_by_their_names(name: str, tmp_path: Path) -> None:
    data, message = OTHER_FORMATS[name]
    path = tmp_path / "file.gguf"
    path.write_bytes(data)
    with pytest.raises(kv.errors.FormatError, match=f"{message}.*, allowed one that begins with GGUF"):
        kv.models.load(path)


SPLITS = {
    "another place": (1, "split.no", 2, r"part-00002-of-00003\.gguf: split\.no: got 2, allowed 1"),
    "of another file": (2, "split.count", 4, r"part-00003-of-00003\.gguf: split\.count: got 4, allowed 3"),
    "fewer tensors": (0, "split.tensors.count", 7, r"split\.tensors\.count: got 7, allowed 20, all of them"),
    "no number": (0, "split.no", -1, r"split\.no: got -1, allowed a whole number"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_parts_belong_together(name: str, tmp_path: Path) -> None:
    number, key, value, message = SPLITS[name]
    reader = gguf.GGUFReader(write(*checkpoint("llama-gqa-tied"), tmp_path / "model.gguf"))
    for part in range(3):
        writer = gguf.GGUFWriter(tmp_path / f"part-{part + 1:05d}-of-00003.gguf", "llama")
        for each, field in reader.fields.items():
            if part == 0 and not each.startswith(("GGUF.", "general.architecture")):
                writer.add_key_value(each, field.contents(), field.types[0])
        numbers = {"split.no": part, "split.count": 3, "split.tensors.count": len(reader.tensors)}
        for each, own in {**numbers, **({key: value} if part == number else {})}.items():
            writer.add_int32(each, own)
        for tensor in reader.tensors[part::3]:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    with pytest.raises(kv.errors.FormatError, match=message):
        kv.models.load(tmp_path / "part-00001-of-00003.gguf")
