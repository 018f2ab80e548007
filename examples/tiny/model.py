"""A Llama in plain PyTorch: the module names are those of a Hugging Face checkpoint, so `state_dict` is one.

Root-mean-square norms, rotary positions in the split-half form, grouped-query causal attention, a SwiGLU feed-forward
block, input and output embedding shared. Shapes: tokens [batch, length] int64, logits [batch, length, vocab] float32.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Shape:
    """The sizes of the model; `context` is the longest sequence it was trained on."""

    vocab: int = 3072
    width: int = 192
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 512
    context: int = 4096
    rope_base: float = 10000.0
    norm_eps: float = 1e-5


class Attention(nn.Module):
    """Causal attention in which `heads / kv_heads` query heads share one key and value head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [batch, length, width]; cos and sin [length, head_dim]."""
        batch, length, _ = x.shape
        group = self.shape.heads // self.shape.kv_heads
        query, key, value = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, width]."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Norm and attention, then norm and feed-forward, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [batch, length, width]; cos and sin [length, head_dim]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Embedding, layers and last norm: the part that a checkpoint calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)


class Llama(nn.Module):
    """The language model; `forward` gives logits, `loss` the cross-entropy of each next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        rates = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 if not residual else 0.02 / math.sqrt(2 * shape.layers))

    def features(self, tokens: Tensor) -> Tensor:
        """The last norm's output, [batch, length, width]."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocab] in float32."""
        return functional.linear(self.features(tokens), self.model.embed_tokens.weight).float()

    def loss(self, tokens: Tensor) -> Tensor:
        """Cross-entropy in nats of tokens[:, 1:] given what precedes, [batch, length - 1]."""
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(
            len(tokens), -1
        )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: component i turns with component i + head_dim / 2."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).type_as(x)


def save_checkpoint(model: Llama, folder: Path, bos: int, end: int) -> None:
    """Write config.json and model.safetensors (float16) as Hugging Face's LlamaForCausalLM reads them."""
    shape = model.shape
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "vocab_size": shape.vocab, "hidden_size": shape.width, "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "hidden_act": "silu", "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps, "rope_theta": shape.rope_base, "rope_scaling": None,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": bos, "eos_token_id": end, "use_cache": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: tensor.detach().half().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load_checkpoint(folder: Path) -> Llama:
    """Read back what `save_checkpoint` wrote, in float32."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(
        vocab=config["vocab_size"], width=config["hidden_size"], layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
        hidden=config["intermediate_size"], context=config["max_position_embeddings"], rope_base=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )  # fmt: skip
    model = Llama(shape)
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return model.eval()


@torch.no_grad()
def generate(model: Llama, tokens: list[int], count: int, temperature: float, seed: int, end: int) -> list[int]:
    """Write up to `count` tokens after `tokens`, all read again each time; temperature 0 takes the likeliest."""
    generator = torch.Generator().manual_seed(seed)
    written: list[int] = []
    while len(written) < count and (not written or written[-1] != end):
        features = model.features(torch.tensor([(tokens + written)[-model.shape.context :]]))[0, -1]
        logits = functional.linear(features, model.model.embed_tokens.weight)
        if temperature == 0.0:
            written.append(int(logits.argmax()))
        else:
            written.append(int(torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=generator)))
    return written
