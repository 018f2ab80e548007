"""The kernels that GPUs run, and the options that csrc/ops builds them with there.

A GPU is of the work-group family: LANES 64 for small kernels, ROW_VW 4 (what NVIDIA, AMD and Intel give as their float
vector width leads to 4), groups of 128 or 256 for products. Head sizes and storages are those of common models: every
storage of packed weights, cells of every format, heads of 64, 128 and 256.

``NOT_ON_GPUS`` names the sources and kernels that no GPU runs, with the reason.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ROW = ("ROW_VW=4",)
_LANES = ("LANES=64", "ROW_VW=4")
K8_V4 = ("CELL_FORMAT=3", "V_FORMAT=4")  # K and V apart
NOT_ON_GPUS = {
    "attention.cl": "the serial family: CPU devices",
    "launch_graph.cl": "replays steps by work-items that wait for each other: CPU devices (csrc/ops/launch_graph.cpp)",
    "capability.cl": "asks what a compiler for CPUs aims at",
    "driver_threads.cl": "binds the threads of a driver for CPUs",
    "probe.cl": "what tests launch",
    "matmul.cl: matmul_packed": "the serial family",
    "matmul.cl: matmul_gated": "the serial family",
    "matmul.cl: matmul_routed": "the serial family",
    "matmul.cl: matmul_gated_routed": "the serial family",
    "matmul.cl: unpack_rows": "the serial family",
    "matmul.cl: round_rows": "the serial family",
}


# By instructions of NVIDIA's that other compilers do not know: kernels/tensor_core.clh.
FOR_NVIDIA = ("attention_tensor", "launch_groups", "matmul_tensor", "matmul_tensor_many")


class Variant(NamedTuple):
    """kernels/``program``.cl with ``options``; a device launches its kernels ``entries``, ``lanes`` to a group."""

    program: str
    options: tuple[str, ...]
    entries: tuple[str, ...]
    lanes: int

    @property
    def only_on(self) -> str | None:
        """The one architecture whose matrix unit it asks for; None: others have it, too."""
        return next((unit.architecture for unit in MATRIX_UNITS if f"UNIT={unit.number}" in self.options), None)

    @property
    def key(self) -> str:
        """What files and rows of a table are called; options that are numbered are those of a step's products."""
        forms = [each for each in self.options if re.search(r"_FORM\d=", each)]
        if not forms:
            return " ".join((self.program, *self.options))
        first = [each.replace("_FORM0=", "=") for each in forms if "_FORM0=" in each][:3]
        return " ".join((self.program, *first, *(each for each in self.options if each not in forms)))


class MatrixUnit(NamedTuple):
    """A matrix unit of kernels/matrix_layout.clh: lanes of a wave, rows of its tile, lanes of a group of many rows.

    ``instruction``, ``of_bfloats``: what the machine code of a product has, and of one with weights of bfloat16.
    """

    number: int
    architecture: str
    instruction: str
    of_bfloats: str
    wave: int
    tile: int
    many_lanes: int

    def lanes(self, few: bool) -> int:
        """Of a group: a wave for each slice of k, or 64 rows x 64 outputs."""
        return 4 * self.wave if few else self.many_lanes


MATRIX_UNITS = (
    MatrixUnit(1, "gfx1100", r"v_wmma_f32_16x16x16_f16 ", r"v_wmma_f32_16x16x16_bf16 ", 32, 16, 256),
    MatrixUnit(2, "gfx942", r"v_mfma_f32_16x16x16_f16 ", r"v_mfma_f32_16x16x16_bf16 ", 64, 16, 256),
    MatrixUnit(3, "dg2", r"dpas\.8x8 .*:hf .*:hf ", r"dpas\.8x8 .*:bf .*:bf ", 8, 8, 128),
)


def matrix_variant(unit: MatrixUnit, stored: int, few: bool, further: tuple[str, ...] = ()) -> Variant:
    """matmul_matrix.cl as csrc/ops/matmul_matrix.cpp builds it."""
    options = (f"UNIT={unit.number}", f"STORED={stored}", f"FEW={int(few)}", *further)
    return Variant("matmul_matrix", options, ("matrix_products", "matrix_split"), unit.lanes(few))


def _matrix_products() -> list[Variant]:
    """matmul_matrix.cl, each on the architecture whose unit it asks for: all types of weights, few rows and many; of
    bfloat16, q8_0 and q4_K what is gated, and of one term."""
    made = []
    for unit in MATRIX_UNITS:
        for few in (True, False):
            made += [matrix_variant(unit, stored, few) for stored in range(1, 12)]
            further = [(stored, each) for stored in (2, 3, 8) for each in ("GATED=1", "TERMS=1")]
            made += [matrix_variant(unit, stored, few, (each,)) for stored, each in further]
    return made


class GroupForm(NamedTuple):
    """A form of kernels/attention_group.cl: lines of a group of 64 lanes."""

    lines: int
    warps: int = 2


# Formats of cells that attention_tensor.cl takes, and what it is built with.
TENSOR_CELLS = {"float16": (), "float32": ("CELL_FORMAT=0",), "q8_0": ("CELL_FORMAT=3",)}


class TensorForm(NamedTuple):
    """A form of attention_tensor.cl: warps of a group, 8 lines to each (paired) or 16."""

    warps: int
    paired: bool

    @property
    def lines(self) -> int:
        """Of a group: rows times query heads of one K/V head."""
        return self.warps * (8 if self.paired else 16)

    def options(self, dim: int, terms: int, merges: bool = False, cells: str = "float16") -> tuple[str, ...]:
        """What a device builds it with."""
        made = (f"K_DIM={dim}", f"TERMS={terms}", *TENSOR_CELLS[cells])
        made += (f"WARPS={self.warps}", f"PAIRED={int(self.paired)}")
        return (*made, "MERGES=1") if merges else made


def tensor_forms(dim: int, terms: int = 2, cells: str = "float16") -> tuple[TensorForm, ...]:
    """As csrc/ops/attention_tensor.cpp has them for heads of ``dim`` numbers; with one term, of up to 128, and of
    other cells than float16, too."""
    paired = tuple(TensorForm(warps, True) for warps in (1, 2, 4))
    if cells != "float16":
        whole = cells == "float32" or dim % 64 == 0
        return paired if dim <= 128 and terms == 2 and whole else ()
    if dim > 128:
        return paired if terms == 2 else ()
    if terms == 1:
        return (paired[0], *(TensorForm(warps, False) for warps in (1, 2, 4)))
    return (*paired, TensorForm(4, False))


def _products() -> list[Variant]:
    """matmul_group.cl: STORED 0 float32, 1 float16, 2 bfloat16, 3 q8_0, 4 to 11 blocks of 2 to 6 bits.

    The form of one row and of many for each storage; all forms of float16, q8_0 and q4_K; lines of q2_K, too.
    """
    made = []
    for stored in range(12):
        packed = (f"STORED={stored}", "X4=1")
        made.append(Variant("matmul_group", (*packed, "LANES=128"), ("matmul_few", "matmul_many"), 128))
        if stored in (1, 3, 8, 11):
            made.append(Variant("matmul_group", (f"STORED={stored}", "X4=0", "LANES=32"), ("embed",), 32))
        if stored not in (1, 3, 8):
            continue
        made.append(Variant("matmul_group", (*packed, "LANES=256"), ("matmul_many",), 256))
        for rows, columns in ((1, 64), (4, 32), (8, 32), (8, 64)):
            options = (*packed, "LANES=128", f"ROWS={rows}", f"COLUMNS={columns}")
            made.append(Variant("matmul_group", options, ("matmul_few",), 128))
        gated = (*packed, "GATED=1")
        made.append(Variant("matmul_group", (*gated, "LANES=128"), ("matmul_few", "matmul_many"), 128))
        made.append(Variant("matmul_group", (*gated, "LANES=256"), ("matmul_many",), 256))
    return made


def _tensor_products() -> list[Variant]:
    """matmul_tensor.cl and matmul_tensor_many.cl with the local memory that every device allows.

    All types of weights for one row and for many; all forms of float16, bfloat16, q8_0 and q4_K, some of them with one
    term.
    """
    made = []
    for stored in range(1, 12):
        few, many = f"STORED={stored}", (f"STORED={stored}", "SAVE_LOCALLY=0")
        made.append(Variant("matmul_tensor", (few, "ROWS=1"), ("tensor_few",), 128))
        made.append(Variant("matmul_tensor", (few, "ROWS=1", "NORMED=1"), ("tensor_few",), 128))
        made.append(
            Variant("matmul_tensor_many", (*many, "WARPS_N=2", "SPLIT=0"), ("tensor_many", "tensor_split"), 128)
        )
        if stored not in (1, 2, 3, 8):
            continue
        made.append(Variant("matmul_tensor", (few, "ROWS=8"), ("tensor_few",), 128))
        made.append(Variant("matmul_tensor", (few, "ROWS=8", "GATED=1"), ("tensor_few",), 128))
        made.append(Variant("matmul_tensor", (few, "ROWS=8", "NORMED=1"), ("tensor_few",), 128))
        made.append(Variant("matmul_tensor", (few, "ROWS=8", "GATED=1", "NORMED=1"), ("tensor_few",), 128))
        made.append(Variant("matmul_tensor_many", (*many, "WARPS_N=1", "SPLIT=1"), ("tensor_many", "tensor_join"), 64))
        for rows in (1, 8):
            stores = (few, f"ROWS={rows}", "NORMED=1", "QKV=1", "CELL_FORMAT=1")
            made.append(Variant("matmul_tensor", stores, ("tensor_few",), 128))
        made.append(Variant("matmul_tensor", (few, "ROWS=8", "QKV=1", "CELL_FORMAT=0"), ("tensor_few",), 128))
        small = (few, "SAVE_LOCALLY=1", "WARPS_M=1", "WARPS_N=1", "SPLIT=0", "GATED=1")
        made.append(Variant("matmul_tensor_many", small, ("tensor_many",), 32))
        made += _with_one_term(few)
    return made


def _with_one_term(stored: str) -> list[Variant]:
    """Of few rows the smallest form and the largest; of many each kind of warp, of slices and of y."""
    few = [(stored, "ROWS=1", "TERMS=1"), (stored, "ROWS=8", "TERMS=1"),
           (stored, "ROWS=8", "GATED=1", "NORMED=1", "TERMS=1"),
           (stored, "ROWS=8", "NORMED=1", "QKV=1", "CELL_FORMAT=1", "TERMS=1")]  # fmt: skip
    many = (stored, "SAVE_LOCALLY=0", "TERMS=1")
    made = [Variant("matmul_tensor", options, ("tensor_few",), 128) for options in few]
    made.append(Variant("matmul_tensor_many", (*many, "WARPS_N=2", "SPLIT=0"), ("tensor_many", "tensor_split"), 128))
    made.append(Variant("matmul_tensor_many", (*many, "WARPS_N=1", "SPLIT=1"), ("tensor_many", "tensor_join"), 64))
    if stored == "STORED=2":  # whose x has two terms: no form of warps of 64 rows
        return made
    wide = (stored, "SAVE_LOCALLY=1", "TERMS=1", "WARP_ROWS=64", "RING_BYTES=49152")
    return [*made, Variant("matmul_tensor_many", (*wide, "WARPS_N=2", "SPLIT=0"), ("tensor_many",), 128)]


def _attention() -> list[Variant]:
    made = []
    for dim in (64, 128, 256):
        for cells in (("CELL_FORMAT=0",), ("CELL_FORMAT=1",), ("CELL_FORMAT=3",), ("CELL_FORMAT=4",), K8_V4):
            sizes = (f"K_DIM={dim}", f"V_DIM={dim}", *cells)
            group = (*sizes, "MASKED=0", "LANES=64")
            lines = (1, 2, 4, 8) if cells == ("CELL_FORMAT=1",) else (8,)
            made += [Variant("attention_group", (*group, f"LINES={each}"), ("attend_tiles",), 64) for each in lines]
            made.append(Variant("qkv", (f"K_DIM={dim}", *cells, *_LANES), ("put_qkv",), 64))
        made.append(Variant("attention_merge", (f"V_DIM={dim}", "LANES=64"), ("attend_merge",), 64))
        made.append(Variant("attention_merge", (f"V_DIM={dim}", "V_FORMAT=4", "LANES=64"), ("attend_merge",), 64))
    sizes = ("K_DIM=64", "V_DIM=64", "CELL_FORMAT=1", "MASKED=1", "LANES=64", "LINES=8")
    return [*made, *_attention_tensor(), Variant("attention_group", sizes, ("attend_tiles",), 64)]


def _attention_tensor() -> list[Variant]:
    """All forms, with one term, with two, and of other cells, and those that merge: of one term the first of them."""
    dims = (64, 128, 256)
    made = [(dim, form, 2, merges, cells) for cells in TENSOR_CELLS for dim in dims
            for form in tensor_forms(dim, 2, cells) for merges in (False, True)]  # fmt: skip
    made += [(dim, form, 1, False, "float16") for dim in dims for form in tensor_forms(dim, 1)]
    made += [(dim, TensorForm(1, True), 1, True, "float16") for dim in (64, 128)]
    return [Variant("attention_tensor", form.options(dim, terms, merges, cells), ("attend_tiles",), 32 * form.warps)
            for dim, form, terms, merges, cells in made]  # fmt: skip


def step_variant(stored: int, rows: int, dim: int, terms: int = 2, floats: bool = False) -> Variant:
    """A decode step as one launch, of a dense model (csrc/ops/launch_graph_options.cpp): products of q, k and v, of o
    and down, of gate and up, and of the head, attention with heads of ``dim``, and what
    adds a bias. Embeddings are halves or bfloat16, or the head's weights. ``floats``: cells are float32."""
    cells = {"CELL_FORMAT": 0, "V_FORMAT": 0} if floats else {}
    forms = ({"NORMED": 1, "QKV": 1, **cells}, {}, {"NORMED": 1, "GATED": 1}, {"NORMED": 1})
    fixed = {"STORED": stored, "ROWS": rows, "TERMS": terms, "NORMED": 0, "QKV": 0, "GATED": 0, "CELL_FORMAT": 1,
             "V_FORMAT": 1}  # fmt: skip
    options = [f"{name}_FORM{i}={value}" for i, form in enumerate(forms) for name, value in {**fixed, **form}.items()]
    rows_of = ["WITH_embedding=1", f"FROM={stored}", "TO=0"]
    embedding = rows_of if stored < 3 else ["WITH_embed=1", f"EMBED_STORED={stored}"]
    options += [f"FORMS={len(forms)}", *embedding, "ROW_VW=4", "WITH_tensor_attend=1", "WITH_add=1"]
    options += [f"K_DIM={dim}", f"ATTENTION_TERMS={terms}", *(["ATTENTION_FORMAT=0"] if floats else [])]
    return Variant("launch_groups", tuple(options), ("run_groups", "locate"), 128)


OPERATIONS = (
    *("silu", "sigmoid", "softplus", "relu_squared", "signed_root", "clamp_scaled", "add", "mul"),
    *("silu_mul", "gelu_tanh_mul", "gelu_exact_mul"),
)
RECURRENT = ("gated_delta", "ssd")
CHOSEN = ("score_keys", "choose_keys", "place_chosen", "mean_keys", "spread_blocks")


def channel_delta(dim: int, lanes: tuple[str, ...]) -> Variant:
    """The delta rule with a decay for each number of k."""
    options = (f"DELTA_DIM={dim}", "DELTA_ROWS=1", "DELTA_TILE=8", "DELTA_CHANNELS=1", *lanes)
    return Variant("recurrent", options, RECURRENT[:1], 64)


def _small() -> list[Variant]:
    norms = ("rms_norm", "layer_norm", "l2_norm", "softmax", "argmax")
    delta = ("DELTA_ROWS=1", "DELTA_TILE=8", *_LANES)
    conv = ("CONV_STATE=0", "CONV_WIDTH=4", "CONV_BLOCK=1", *_ROW)
    return [
        Variant("rows", _LANES, norms, 64),
        Variant("rows", ("LANES=512", "ROW_VW=4"), ("argmax",), 512),
        Variant("rope", _LANES, ("rope",), 64),
        Variant("turn", _LANES, ("take_turned",), 64),
        Variant("sample", _LANES, ("sample",), 64),
        *[
            Variant("chosen", (f"KEPT_AS={kept}", f"DIM={dim}", *_LANES), CHOSEN, 64)
            for kept, dim in ((1, 128), (1, 64), (0, 36))
        ],
        Variant("experts", _LANES, ("route", "route_biased", "scale_rows", "weighted_sum"), 64),
        *[Variant("elementwise", (f"OP={each}", *_ROW), (each,), 64) for each in OPERATIONS],
        Variant("copy", ("FROM=0", "TO=1", *_ROW), ("cast",), 64),
        Variant("copy", ("FROM=1", "TO=0", *_ROW), ("cast", "embedding"), 64),
        Variant("copy", _ROW, ("copy_rows", "take_rows"), 64),
        Variant("cells", ("CELL_FORMAT=1", "LINEAR=0", *_LANES), ("load_cells", "store_cells"), 64),
        Variant("cells", ("CELL_FORMAT=1", "LINEAR=1", *_LANES), ("load_cells", "store_cells"), 64),
        Variant("cells", ("CELL_FORMAT=3", "LINEAR=0", *_LANES), ("load_cells", "store_cells"), 64),
        Variant("cells", ("CELL_FORMAT=4", "LINEAR=0", *_LANES), ("load_cells", "store_cells"), 64),
        Variant("cells", (*K8_V4, "LINEAR=0", *_LANES), ("load_cells", "store_cells"), 64),
        Variant("cells_edit", ("CELL_FORMAT=1", *_LANES), ("rotate_cells", "fill_cells"), 64),
        Variant("cells_edit", ("CELL_FORMAT=3", "K_DIM=64", *_LANES), ("rotate_cells",), 64),
        Variant("cells_edit", ("CELL_FORMAT=4", "K_DIM=64", *_LANES), ("rotate_cells",), 64),
        *[Variant("recurrent", (f"DELTA_DIM={dim}", *delta), RECURRENT, 64) for dim in (64, 128)],
        *[channel_delta(dim, _LANES) for dim in (64, 128)],
        Variant("recurrent", ("DELTA_DIM=256", *delta), RECURRENT[1:], 64),
        Variant("recurrent", conv, ("causal_conv1d",), 64),
        *[Variant("pack_blocks", (f"STORED={stored}", *_ROW), ("pack_blocks",), 1) for stored in range(4, 12)],
        Variant("pack_q8", ("STORED=1", *_ROW), ("pack_q8",), 1),
        *[Variant("matmul_rows", (f"STORED={stored}", *_ROW), ("matmul_nk", "matmul_kn"), 64) for stored in (0, 1)],
        Variant("matmul", ("STORED=1", "MATMUL_VW=4", "SLICE=512"), ("pack",), 1),
    ]


STEPS = [step_variant(1, 1, 128), step_variant(3, 8, 64), step_variant(2, 8, 64, floats=True)]
MATRIX_VARIANTS = _matrix_products()
VARIANTS = [*_products(), *_tensor_products(), *_attention(), *_small(), *STEPS]
