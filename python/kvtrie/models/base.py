"""The base of every decoder-only model: weights on the device, the embedding, and the final head with its rows.

A family is one short file in ``families/``: how it reads ``config.json`` and what its layers are made of
(``layer_plan``); see that folder. Activations are float32; weight matrices are float32, float16, bfloat16 or blocks on
the device; norm weights and biases are always float32.

Threads: any, each with a step of its own. A built model does not change; :meth:`Model.warm_up` has a lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload

from .. import ops
from .._arguments import CellFormats, cell_formats, flag, progress_of, refusal
from .._core import CausalCache, Device, RecurrentCache, Step, StepGraphs, Tensor, TokenTexts
from .._locks import make_lock
from .._options import TextOptions
from .._prompts import has_answers
from ..errors import ArgumentTypeError, NotSupportedError
from ..generate import begin_text
from ..generation import Generation
from ..prefix_cache import PrefixCache
from .attention_group import AttentionGroup
from .common_settings import COMMON
from .config import ModelConfig
from .decoder import DecoderLayer, LayerPlan, Shapes, Site
from .gguf_form import GgufForm
from .helper import Helper, helper_for
from .linear import Norm
from .mtp import WithHead
from .reader import Raw
from .rope_arguments import RopeArguments
from .rope_config import rope_type_of
from .settings import Account, Settings
from .states import States, state_caches
from .step_inputs import Positions, Rope, Rows, StepLike, checked_tokens, ropes_of
from .tokenizer import Message, TextReading, Tokenizer, template_variables, text_reading
from .warm_up import warm_up, warm_up_first
from .weight_table import WeightTable
from .weights import Array, Progress, WeightSource, text_name, text_sources, tqdm_progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

OWN_CAPACITY = 8192  # tokens, of the model's own cache
DTYPES = ("float32", "float16", "bfloat16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "stored")


class Model(WithHead):
    """A loaded model. ``model(step)`` computes a step and gives the logits that continue its sessions."""

    family: ClassVar[str] = ""  # ``model_type`` in config.json
    architectures: ClassVar[tuple[str, ...]] = ()  # what it is called there under that name
    also: ClassVar[tuple[str, ...]] = ()  # other values of ``model_type`` that files of the same layers have
    outer: ClassVar[str] = ""  # ``model_type`` of a model around it, whose ``text_config`` has its own
    gguf: ClassVar[Mapping[str, GgufForm]] = {}  # by ``general.architecture``
    norm_offset: ClassVar[float] = 0.0  # norms multiply by (offset + weight)
    last_norm: ClassVar[bool] = True  # whether a norm stands behind the last layer
    settings: ClassVar[Settings] = COMMON  # what becomes of each key of config.json
    ropes_by_kind: ClassVar[bool] = False  # whether each kind of layers has its own RoPE
    own_rope: ClassVar[Settings] = {}  # what becomes of keys of RoPE, where it is not as in others
    shifts: ClassVar[bool] = True  # whether stored keys can be rotated on, which norms behind a rotation do not allow
    packed: ClassVar[tuple[str, ...]] = ()  # methods of ``quantization_config`` whose weights it reads
    ignored: ClassVar[Mapping[str, str]] = {}  # patterns of stored tensors that are not used, and why
    name_in_transformers = staticmethod(text_name)  # of a stored tensor

    config: ModelConfig
    device: Device
    dtype: str  # of the weight matrices on the device: one of DTYPES, as WeightTable explains them
    precision: str  # of products and attention: "auto", "exact" or "fast", as load() explains them
    fingerprint: str  # SHA-256 (hex): equal exactly when config, weights, storage dtype and precision are equal
    nbytes: int  # device memory of all weights
    kept: dict[str, str]  # by matrix: its type on the device
    losses: dict[str, float]  # by tensor that loading quantised: root of mean square error over that of its numbers
    graphs: StepGraphs  # small steps that were recorded
    account: Account  # what became of each key of its files
    replays: bool  # whether they are replayed, on devices where that works; the bits are the same

    def __init__(
        self,
        config: ModelConfig,
        sources: Mapping[str, WeightSource],
        *,
        device: Device,
        dtype: str,
        tokenizer: Tokenizer | None = None,
        progress: Progress | None = None,
        precision: str = "auto",
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.precision = precision
        own = {name: sources[name] for name in self.tensor_shapes(config)}
        self._stored = {name: source.stored for name, source in own.items()}
        self._helper: Helper | None = helper_for(self, "float16")  # what compiles beside this process and behind it
        weights = WeightTable(own, device, dtype, progress, precision)
        self._tokenizer = tokenizer
        self._prefix_cache: PrefixCache | None = None  # guarded by the lock
        self._cache_lock = make_lock()
        self._token_texts: tuple[TokenTexts | None] | None = None  # None: not made yet; the same
        self._embedding = weights.table("model.embed_tokens.weight", is_head=config.tie_word_embeddings)
        ropes = self._ropes(config, device)
        sites = (
            Site(config, weights, ropes.get(index), index, self.norm_offset)
            for index in range(config.num_hidden_layers)
        )
        self._layers = [DecoderLayer(self.layer_plan(config, site.index), site) for site in sites]
        last = weights.optional_vector("model.norm.weight", self.last_norm)
        self._norm = None if last is None else Norm(last, config.rms_norm_eps, self.norm_offset)
        self._head = weights.tied(self._embedding) if config.tie_word_embeddings else weights.linear("lm_head")
        self.account, self.mtp, self.replays = {}, None, True
        self.build_rest(weights)
        self.nbytes, self._packs = weights.nbytes, weights.packs
        self.kept, self.losses = weights.kept, weights.losses
        self.graphs, self._hidden_graphs = StepGraphs(), StepGraphs()  # of logits, of logits with hidden states
        self._warm: set[str | None] = set()  # dtypes of K and V, guarded by the lock
        self._warm_lock = make_lock()
        identity = f"{config.digest()}\0{f'{dtype} {precision}'.removesuffix(' auto')}\0".encode() + weights.digest()
        self.fingerprint = hashlib.sha256(identity).hexdigest()

    @classmethod
    def rope_type(cls, parameters: Raw) -> object:
        """The type of ``parameters`` of RoPE, by the name that rope_config.py has for it."""
        return rope_type_of(parameters)

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> ModelConfig:
        """The family's reading of ``config.json``."""
        raise NotImplementedError

    @classmethod
    def adapt(
        cls,
        config: ModelConfig,  # noqa: ARG003 (families look at it)
        sources: Mapping[str, WeightSource],
    ) -> dict[str, WeightSource]:
        """The checkpoint's tensors under the names and in the shapes of ``tensor_shapes``, where it differs from them;
        here those of its text model, where it has other parts, too (:func:`text_sources`)."""
        return text_sources(sources)

    @classmethod
    def tensor_shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint and its shape."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
            **({"model.norm.weight": (config.hidden_size,)} if cls.last_norm else {}),
        }
        if not config.tie_word_embeddings:
            shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
        for index, own in enumerate(cls.layers_shapes(config)):
            for name, shape in own.items():
                shapes[f"model.layers.{index}.{name}"] = shape
        return shapes

    @classmethod
    def layers_shapes(cls, config: ModelConfig) -> list[Shapes]:
        """The tensors of each layer, named below ``model.layers.N.``."""
        return [cls.layer_plan(config, index).shapes(config) for index in range(config.num_hidden_layers)]

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        """The plan of layer ``index``."""
        raise NotImplementedError

    def build_rest(self, weights: WeightTable) -> None:
        """Builds the weights that a family keeps on the device beside its layers."""

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        """The layers that attend, one group for each cache."""
        rope: RopeArguments = {"base": config.rope_theta, "scaling": config.rope_scaling}
        return [AttentionGroup(tuple(range(config.num_hidden_layers)), rope, {})]

    @classmethod
    def states(cls, config: ModelConfig) -> States:  # noqa: ARG003 (families look at it)
        """The states that recurrent layers keep."""
        return States()

    def embed(self, tokens: Array) -> Tensor:
        """tokens [rows] -> [rows, hidden]."""
        return ops.embedding(self._embedding, tokens)

    def finish(self, logits: Tensor) -> Tensor:
        """The last change to logits [rows, vocab]."""
        return logits

    @overload
    def __call__(
        self, step: StepLike, all_rows: bool = ..., rows: Sequence[int] | None = ..., *, hidden: Literal[False] = ...
    ) -> Tensor: ...
    @overload
    def __call__(
        self, step: StepLike, all_rows: bool = ..., rows: Sequence[int] | None = ..., *, hidden: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...
    def __call__(
        self, step: StepLike, all_rows: bool = False, rows: Sequence[int] | None = None, *, hidden: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """float32 logits [len(step.sessions), vocab]: what follows each session's last row of this step.

        ``all_rows=True`` gives [rows, vocab], and ``rows``, numbers of rows of this step, [len(rows), vocab].
        ``hidden=True`` gives them with the hidden states [rows, hidden_size] of all rows of the step, behind the last
        norm: what the head reads. The step is complete when this returns. Raises ``kv.errors.ArgumentError`` for a
        token outside the vocabulary; the step is then still open and its sessions stand where they stood.
        """
        flag(all_rows, "model", "all_rows")
        flag(hidden, "model", "hidden")
        if not hasattr(step, "attend"):
            raise ArgumentTypeError(
                f"[models] step: got {type(step).__name__}, allowed a step of a session or of cache.batch()"
            )
        tokens, wanted, helper = checked_tokens(step, self.config), Rows(step, all_rows, rows), self._helper
        over = helper is None or helper.over
        replayed = self.replays and over and wanted.all and isinstance(step, Step)
        if hidden:
            return self._with_hidden(step, tokens, wanted, replayed)
        if replayed:
            further = self.further_inputs(step, tokens)
            return self.graphs.compute(cast(Step, step), lambda: self._launch(step, tokens, wanted), further)
        logits = self._launch(step, tokens, wanted)
        if helper is not None:
            helper.go_on()
        return logits

    def further_inputs(self, step: StepLike, tokens: Array) -> list[Array]:  # noqa: ARG002 (families look at them)
        """What else the host computes for a step and operations read, see ``StepGraphs.compute``."""
        return []

    def _launch(self, step: StepLike, tokens: Array, rows: Rows) -> Tensor:
        """Computes a step operation by operation. Where ``rows`` takes all of them, what is launched depends on nothing
        but their number."""
        return self.finish(self._head(self.through(range(len(self._layers)), step, tokens, rows), norm=self._norm))

    def _with_hidden(self, step: StepLike, tokens: Array, rows: Rows, replayed: bool) -> tuple[Tensor, Tensor]:
        """Logits of ``rows`` and hidden states of all; a recorded step gives one tensor, so both beside each other."""
        if replayed:
            both = self._hidden_graphs.compute(
                cast(Step, step),
                lambda: ops.concat(list(self._with_hidden(step, tokens, rows, False)), axis=1),
                self.further_inputs(step, tokens),
            )
            logits, hidden = ops.split(both, [self.config.vocab_size, self.config.hidden_size])
            return logits, hidden
        hidden = self.through(range(len(self._layers)), step, tokens, None)
        hidden = hidden if self._norm is None else self._norm(hidden)
        return self.finish(self._head(rows.take(hidden))), hidden

    def through(self, layers: Sequence[int], step: StepLike, tokens: Array, rows: Rows | None) -> Tensor:
        """The embeddings of ``tokens`` through ``layers``; of the last of all only ``rows`` are kept, if given."""
        x, positions, last = self.embed(tokens), Positions(step, self.device), len(self._layers) - 1
        for index in layers:
            x = self._layers[index](step, x, positions, rows if index == last else None)
        return x

    def caches(
        self,
        capacity: int = 8192,
        dtype: CellFormats = "float16",
        *,
        window_capacity: int | None = None,
        memory: int | None = None,
        slots: int | None = None,
        warm_up: bool = True,
        **options: Any,
    ) -> list[CausalCache | RecurrentCache]:
        """New caches for this model: ``capacity`` in cells (tokens), ``dtype`` of K and V (docs/cell_formats.md).

        ``dtype``: "float16", "float32", "q8_0" or "q4h" (heads are of multiples of 32 numbers then), or two as a pair
        or as "K/V". ``window_capacity``: cells of the layers that see a window or a chunk, as ``capacity`` if None.
        ``memory``: what layers with a window keep, in tokens, the window itself if None. ``slots``: recurrent states
        (float32), one for each session and each point that a later prompt may go on from; None: 64, and of small ones
        more, one for each 16 cells. ``warm_up``: whether :meth:`warm_up` is called. ``options`` go to ``CausalCache``.
        """
        flag(warm_up, "model.caches", "warm_up")
        kept = cell_formats(dtype, "model.caches", "dtype")
        config = self.config
        options.setdefault("device", self.device)
        caches: list[CausalCache | RecurrentCache] = []
        for group in self.attention_groups(config):
            own: dict[str, Any] = {**group.sees, **group.values()}
            if self.shifts:
                own["rope"] = group.shift(config)
            if memory is not None and "window" in group.sees:
                own["memory"] = memory
            cells = window_capacity if window_capacity is not None and group.sees else capacity
            shape = (list(group.layers), *group.heads_of(config), cells)
            caches.append(CausalCache(*shape, dtype=kept, **{**own, **options}))
        caches += state_caches(self.states(config), slots, caches, options["device"])
        if warm_up:
            self.warm_up(None if options["device"] in ("host", "null") else kept, wait=False)
        return caches

    def warm_up(
        self, dtype: CellFormats | None = "float16", progress: bool | Progress | None = None, *, wait: bool = True
    ) -> None:
        """Compiles and proves every kernel that steps of this model launch, whatever their number of rows.

        ``dtype`` of K and V in the caches; None: those are not on the device. Takes seconds where programs were never
        compiled, milliseconds once they lie on disk, and nothing the second time. ``progress``: called with (done,
        total), in parts of the work, or True for a tqdm bar on stderr where it takes more than a second. ``wait``:
        whether all of it is done before this returns. If not, as :meth:`caches` has it, programs that were never
        compiled are left to a process behind the first step, but for those that any first token needs
        (docs/own_model.md).
        """
        flag(wait, "model.warm_up", "wait")
        kept = None if dtype is None else cell_formats(dtype, "model.warm_up", "dtype")
        progress_of(progress, "model.warm_up")
        close = None
        if progress is True:
            progress, close = tqdm_progress(desc="compiling kernels", unit="part", leave=False, delay=1)
        try:
            with self._warm_lock:
                self._warm_up(kept, progress or None, wait)
        finally:
            if close is not None:
                close()

    def _warm_up(self, dtype: str | None, progress: Progress | None, wait: bool) -> None:
        if dtype in self._warm:
            return
        helper = self._helper
        if helper is not None and helper.dtype != dtype and not self._warm:
            helper = self._helper = helper_for(self, dtype)
        if wait and helper is not None:
            helper.join()
        if not wait and helper is not None and helper.dtype == dtype and not helper.over:
            warm_up_first(self, helper, progress)
        else:
            warm_up(self, dtype, progress)
            self._warm.add(dtype)

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back. Raises ``kv.errors.NotSupportedError`` where the checkpoint has none; see
        ``has_tokenizer``."""
        if self._tokenizer is None:
            raise NotSupportedError(
                "[models] tokenizer: there is none (a folder has it in tokenizer.json); token ids work without"
            )
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The ids that end a text: those of the configuration, and the tokenizer's own end-of-text token."""
        ids = dict.fromkeys(self.config.eos_token_ids)
        if self._tokenizer is not None:
            own = self._tokenizer.token_id(self._tokenizer.special.get("eos_token", ""))
            if own is not None:
                ids[own] = None
        return tuple(ids)

    @property
    def token_texts(self) -> TokenTexts | None:
        """The spelling of each token, made at first use; None where tokens do not spell texts one after the other."""
        with self._cache_lock:
            if self._token_texts is None:
                from .token_texts import token_texts_of

                self._token_texts = (token_texts_of(self.tokenizer),)
            return self._token_texts[0]

    @property
    def prefix_cache(self) -> PrefixCache:
        """The cache of :meth:`chat`, :meth:`complete` and ``kv.generate`` where none is given, made at first use.

        It has room for 8192 tokens, or as many as the model takes if that is less. For other sizes, a disk or a store
        make a ``kv.PrefixCache`` of your own.
        """
        with self._cache_lock:
            if self._prefix_cache is None or self._prefix_cache.closed:
                capacity = min(OWN_CAPACITY, self.config.max_position_embeddings)
                caches, tokenizer = self.caches(capacity=capacity), self._tokenizer
                self._prefix_cache = PrefixCache(caches, fingerprint=self.fingerprint, tokenizer=tokenizer)
            return self._prefix_cache

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        template: Mapping[str, object] | None = None,
        special_tokens: TextReading = "letters",
        **options: Unpack[TextOptions],
    ) -> Generation[str]:
        """The answer to ``messages`` ({"role", "content"}), laid out by the checkpoint's chat template.

        An iterator over its text in whole characters; ``.text`` is all of it, ``.message`` to go on with, and
        ``finish_reason``, ``reused``, ``prompt_tokens``, ``logprobs`` say the rest. Conversations that begin alike
        share what they have in common, in ``cache``, or in the model's own. Answers among the messages are taken in
        the tokens that were chosen for them, where the cache knows them (``PrefixCache.match_text``). ``tools`` and
        ``template`` (further variables) go to the template. What stands in them and in messages is letters, also where
        it looks like a special token; ``special_tokens="parse"`` makes one of it.

        ``options``: ``max_tokens`` (256), ``cache``, ``namespace`` ("default"); ``stop``, ``ignore_eos``, ``chunk``,
        ``progress`` and the parameters of the choice are those of ``kv.generate``; a stop text is not part of the
        answer.
        """
        tokens = self.chat_tokens(messages, tools=tools, template=template, special_tokens=special_tokens)
        return begin_text(self, tokens, options, self.token_texts if has_answers(messages) else None)

    def chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        template: Mapping[str, object] | None = None,
        special_tokens: TextReading = "letters",
    ) -> list[int]:
        """The prompt of :meth:`chat` as token ids, up to where the answer begins."""
        if template is not None and not isinstance(template, Mapping):
            raise refusal(template, "model.chat", "template", "a mapping of variables, or None")
        own = ("chat_template",) if tools is not None else ("chat_template", "tools")
        variables = dict(template_variables(template or {}, "model.chat", "template", own))
        variables |= {} if tools is None else {"tools": tools}
        chosen = variables.pop("chat_template", None)
        reading = text_reading(special_tokens, "model.chat")
        return self.tokenizer.ids_of(self.tokenizer.rendered(messages, True, reading, variables, chosen))

    def complete(
        self, text: str, *, special_tokens: TextReading = "parse", **options: Unpack[TextOptions]
    ) -> Generation[str]:
        """Continues plain ``text``; ``options`` as in :meth:`chat`, special tokens as in ``tokenizer.encode``."""
        return begin_text(self, self.tokenizer.encode(text, special_tokens=special_tokens), options)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"<kvtrie {self.family} model: {c.num_hidden_layers} layers, hidden {c.hidden_size}, "
            f"heads {c.num_attention_heads}/{c.num_key_value_heads} x {c.head_dim}, vocab {c.vocab_size}, "
            f"{self.nbytes / 2**20:.1f} MiB {self.dtype} on {self.device.name}>"
        )

    @classmethod
    def _ropes(cls, config: ModelConfig, device: Device) -> dict[int, Rope]:
        """By layer; those without rotation are left out."""
        return ropes_of(cls.attention_groups(config), config, device)
