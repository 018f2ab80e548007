"""A model that changes between calls, at random, and whether sessions on it give what it computes without a cache.

``World`` has a model of its own with a Cache open on it. A change is a name and a function that makes it and returns
what undoes it, or None where nothing does. After each, a new session, one that goes on from call to call, and one that
was told its prompt before the change are compared with a call that has no cache.
"""

from __future__ import annotations

import contextlib
import copy
import random
import types
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.nn.utils import parametrize
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import bounds
import hf_models as hf
import kvtrie as kv

Undo = Optional[Callable[[], object]]
Change = Callable[["World"], Undo]

PROMPTS = [hf.prompt(14), torch.cat([hf.prompt(9), hf.prompt(5, seed=2)], 1), hf.prompt(11, seed=3)]


def logits(model: Any, ids: Any, past: Any = None, **options: Any) -> Any:
    with torch.no_grad():
        return model(ids, cache=past, **options).logits


class World:
    def __init__(self, model: Any, form: str, seed: int = 0, **options: Any) -> None:
        self.chance = random.Random(seed)
        self.model = model
        self.active: dict[str, Callable[[], object]] = {}
        self.contexts: list[Any] = []
        self.rough = 0  # changes after which what is computed has 8 to 11 bits
        self.reused = 0
        self.cache = kv.hf.Cache(model, capacity=2048, form=form, **options)
        self.living = self.cache.session()
        self.text = hf.prompt(6, seed=self.chance.randrange(99))
        self.begun = False

    @property
    def layers(self) -> Any:
        return self.cache.decoder.layers

    def check(self) -> None:
        """Now, in the state that the model is in."""
        with contextlib.ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            ids = self.chance.choice(PROMPTS)
            with self.cache.session() as past:
                self.close(logits(self.model, ids, past), logits(self.model, ids))
                self.reused += past.reused
                self.note = (past.reused, past.why)
            self.go_on()

    def go_on(self) -> None:
        more = hf.prompt(self.chance.choice((1, 3)), seed=self.chance.randrange(99))
        whole = torch.cat([self.text, more], 1)
        given = more if self.begun else whole
        self.close(logits(self.model, given, self.living), logits(self.model, whole))
        self.text, self.begun = whole, True
        if whole.shape[1] > 60:
            self.begin_again()

    def begin_again(self) -> None:
        self.living.reset()
        self.text, self.begun = hf.prompt(6), False

    def close(self, got: Any, wanted: Any) -> None:
        bound = bounds.LOGITS_OF_HALF if self.rough else bounds.LOGITS_OF_TORCH
        bounds.close(got.float(), wanted.float()[:, -got.shape[1] :], bound)

    def walk(self, changes: dict[str, Change], steps: int) -> None:
        """Makes and undoes ``changes`` in a random order, two at a time at most, so that states come back."""
        for _ in range(steps):
            name = self.chance.choice(list(self.active if len(self.active) > 1 else changes))
            print("undo" if name in self.active else "make", name)
            if name in self.active:
                self.undo(name)
            else:
                self.make(name, changes[name])
            self.check()

    def make(self, name: str, change: Change) -> None:
        undo = change(self)
        if undo is not None:
            self.active[name] = undo

    def undo(self, name: str) -> None:
        if name in self.active:
            self.active.pop(name)()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *args: object) -> None:
        """Undoes what is left, some of which is not of this model alone."""
        for name in list(self.active):
            self.undo(name)
        self.living.close()
        assert self.cache.prefix_cache.check() == []
        self.cache.close()


def set_to(holder: Any, name: str, value: Any) -> Callable[[], object]:
    """Sets an attribute, and what sets it back."""
    former = getattr(holder, name)
    setattr(holder, name, value)
    return lambda: setattr(holder, name, former)


# ---- changes of any model --------------------------------------------------------------------------------------------


def _double(_module: Any, _args: Any, output: Any) -> Any:
    return output * 2


def hook(world: World) -> Undo:
    return world.layers[0].mlp.register_forward_hook(_double).remove


def pre_hook(world: World) -> Undo:
    return world.layers[0].mlp.register_forward_pre_hook(lambda _module, args: (args[0] * 2,)).remove


def hook_of_the_decoder(world: World) -> Undo:
    def other(_module: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "input_ids": (kwargs["input_ids"] + 1) % hf.PAD}

    hooked = world.cache.decoder.register_forward_pre_hook(other, with_kwargs=True)
    world.begin_again()  # the tokens of a session are those that the decoder was given

    def undo() -> None:
        hooked.remove()
        world.begin_again()

    return undo


def global_hook(world: World) -> Undo:
    kind = type(world.layers[0].mlp)

    def double(module: Any, args: Any, output: Any) -> Any:
        return output * 2 if isinstance(module, kind) else None

    return torch.nn.modules.module.register_module_forward_hook(double).remove


def hook_with_a_strength(world: World) -> Undo:
    """One that stays while what it adds changes."""
    strength = [1.0]
    hooked = world.layers[0].mlp.register_forward_hook(lambda _module, _args, output: output * strength[0])
    for strength[0] in (3.0, 0.5):
        world.begin_again()  # within a session nothing tells one strength from the other
        world.check()
    return hooked.remove


def replaced_forward(world: World) -> Undo:
    mlp = world.layers[0].mlp
    former = mlp.forward
    mlp.forward = lambda hidden: former(hidden) * 2
    return lambda: mlp.__dict__.pop("forward")


def forward_of_the_class(world: World) -> Undo:
    kind = type(world.layers[0].mlp)
    former = kind.forward
    return set_to(kind, "forward", lambda self, hidden: former(self, hidden) * 2)


def function_of_the_file(world: World) -> Undo:
    import sys

    file = sys.modules[type(world.layers[0].self_attn).__module__]
    former = file.apply_rotary_pos_emb

    def other(query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        return former(query * 2, key, *args, **kwargs)

    return set_to(file, "apply_rotary_pos_emb", other)


def other_module(world: World) -> Undo:
    torch.manual_seed(3)
    made = copy.deepcopy(world.layers[0].mlp)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.3)
    return set_to(world.layers[0], "mlp", made)


def layers_change_places(world: World) -> Undo:
    def swap() -> None:
        first, second = (world.layers[at].mlp for at in (0, 1))
        world.layers[0].mlp, world.layers[1].mlp = second, first

    swap()
    return swap


def fewer_layers(world: World) -> Undo:
    return set_to(world.model.config, "num_hidden_layers", world.model.config.num_hidden_layers - 1)


def scale_of_attention(world: World) -> Undo:
    return set_to(world.layers[0].self_attn, "scaling", world.layers[0].self_attn.scaling * 2)


def epsilon(world: World) -> Undo:
    return set_to(world.layers[0].input_layernorm, "variance_epsilon", 0.5)


def activation(world: World) -> Undo:
    return set_to(world.layers[0].mlp, "act_fn", torch.nn.Tanh())


def written_to(world: World) -> Undo:
    with torch.no_grad():
        world.layers[0].mlp.up_proj.weight.mul_(1.3)
    return None


def written_through_data(world: World) -> Undo:
    """Which torch does not count."""
    world.layers[0].mlp.down_proj.weight.data.mul_(1.3)
    return None


def other_data(world: World) -> Undo:
    weight = world.layers[0].mlp.gate_proj.weight
    weight.data = weight.data * 1.3
    return None


def other_parameter(world: World) -> Undo:
    norm = world.layers[0].input_layernorm
    return set_to(norm, "weight", torch.nn.Parameter(norm.weight.detach() * 2))


def frequencies(world: World) -> Undo:
    rotary = world.cache.decoder.rotary_emb
    return set_to(rotary, "inv_freq", rotary.inv_freq * 0.5)


def frequencies_in_place(world: World) -> Undo:
    world.cache.decoder.rotary_emb.inv_freq.mul_(0.9)
    return None


def rope_of_the_config(world: World) -> Undo:
    """Read when the model was made: without effect, and not known to be."""
    config = world.model.config
    return set_to(config, "rope_parameters", {**config.rope_parameters, "rope_theta": 7.0})


def eager(world: World) -> Undo:
    former = world.model.config._attn_implementation
    world.model.set_attn_implementation("eager")
    return lambda: world.model.set_attn_implementation(former)


def _twice(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    return sdpa_attention_forward(module, query * 2, key, value, mask, **options)


def attention_of_ones_own(world: World) -> Undo:
    AttentionInterface.register("twice", _twice)
    AttentionMaskInterface.register("twice", sdpa_mask)
    former = world.model.config._attn_implementation
    world.model.set_attn_implementation("twice")
    return lambda: world.model.set_attn_implementation(former)


def training(world: World) -> Undo:
    world.model.train()
    return world.model.eval


def training_of_a_layer(world: World) -> Undo:
    world.layers[0].train()
    return world.layers[0].eval


def checkpointing(world: World) -> Undo:
    world.model.activation_checkpointing_enable()
    return world.model.activation_checkpointing_disable


def half(world: World) -> Undo:
    """And back: the weights are not what they were."""
    world.model.half()
    world.rough += 1
    world.check()
    world.model.float()
    world.rough -= 1
    return None


def autocast(world: World) -> Undo:
    def made() -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    world.contexts.append(made)
    world.rough += 1

    def undo() -> None:
        world.contexts.remove(made)
        world.rough -= 1

    return undo


def precision(world: World) -> Undo:
    """bfloat16 in products of matrices, where the processor has it."""
    torch.set_float32_matmul_precision("medium")
    world.rough += 1

    def undo() -> None:
        torch.set_float32_matmul_precision("highest")
        world.rough -= 1

    return undo


class Doubled(torch.nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


def parametrized(world: World) -> Undo:
    layer = world.layers[0].mlp.up_proj
    parametrize.register_parametrization(layer, "weight", Doubled())
    world.check()
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)  # counts as a write
    return None


def more_tokens(world: World) -> Undo:
    count = world.model.config.vocab_size
    world.model.resize_token_embeddings(count + 4, mean_resizing=False)
    return None


def bound_method(world: World) -> Undo:
    """As patches of other libraries do it."""
    mlp = world.layers[1].mlp

    def forward(self: Any, hidden: Any) -> Any:
        return self.down_proj(self.up_proj(hidden))

    mlp.forward = types.MethodType(forward, mlp)
    return lambda: mlp.__dict__.pop("forward")


def hidden_states_asked_for(world: World) -> Undo:
    """transformers leaves hooks of its own behind."""
    logits(world.model, PROMPTS[0], output_hidden_states=True)
    return None


def flag_of_the_config(world: World) -> Undo:
    return set_to(world.model.config, "output_hidden_states", True)


UNDONE: dict[str, Change] = {
    each.__name__: each
    for each in (
        hook,
        pre_hook,
        hook_of_the_decoder,
        global_hook,
        hook_with_a_strength,
        replaced_forward,
        bound_method,
        forward_of_the_class,
        function_of_the_file,
        other_module,
        layers_change_places,
        fewer_layers,
        scale_of_attention,
        epsilon,
        activation,
        other_parameter,
        frequencies,
        rope_of_the_config,
        eager,
        attention_of_ones_own,
        training,
        training_of_a_layer,
        checkpointing,
        autocast,
        precision,
        hidden_states_asked_for,
        flag_of_the_config,
    )
}
"""What comes back to where it was."""

LASTING: dict[str, Change] = {
    each.__name__: each
    for each in (written_to, written_through_data, other_data, frequencies_in_place, half, more_tokens, parametrized)
}


# ---- adapters --------------------------------------------------------------------------------------------------------


def adapted(peft: Any, name: str = "llama", **options: Any) -> Any:
    """A model of peft with adapters x and y, of which x is active."""
    torch.manual_seed(5)
    given = {"r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj"], "init_lora_weights": False}
    config = peft.LoraConfig(**{**given, **options})
    model = peft.get_peft_model(copy.deepcopy(hf.tiny(name)), config, adapter_name="x")
    model.add_adapter("y", config)
    return model.eval()


def other_adapter(world: World) -> Undo:
    world.model.set_adapter("y")
    return lambda: world.model.set_adapter("x")


def both_adapters(world: World) -> Undo:
    world.model.base_model.set_adapter(["x", "y"])
    return lambda: world.model.set_adapter("x")


def no_adapter(world: World) -> Undo:
    world.model.base_model.disable_adapter_layers()
    return world.model.base_model.enable_adapter_layers


def no_adapter_for_a_while(world: World) -> Undo:
    with world.model.disable_adapter():
        world.check()
    return None


def merged(world: World) -> Undo:
    world.model.merge_adapter()
    return world.model.unmerge_adapter


def scaling(world: World) -> Undo:
    layer = world.layers[0].self_attn.q_proj
    former = layer.scaling["x"]
    layer.scaling["x"] = former / 2

    def undo() -> None:
        layer.scaling["x"] = former

    return undo


def weighted(world: World) -> Undo:
    world.model.add_weighted_adapter(["x", "y"], [0.7, 0.4], "mixed", combination_type="linear")
    active = list(world.model.active_adapters)
    world.model.set_adapter("mixed")

    def undo() -> None:
        world.model.set_adapter("x")
        world.model.delete_adapter("mixed")
        world.model.base_model.set_adapter(active)

    return undo


def written_adapter(world: World) -> Undo:
    with torch.no_grad():
        world.layers[1].self_attn.k_proj.lora_B["x"].weight.mul_(0.8)
    return None


SWITCHED: dict[str, Change] = {
    each.__name__: each
    for each in (other_adapter, both_adapters, no_adapter, no_adapter_for_a_while, scaling, weighted)
}
