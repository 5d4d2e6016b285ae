"""Where the published benchmark and the notes beside it contradict themselves, with every number computed again."""

import math
from dataclasses import dataclass

from labkit.bench.accounting import GIB, MIB, attention_memory, longest_that_fits

BATCH = 8
D_MODELS = (16, 32, 64, 128)
DEVICE_BYTES = 98 * GIB
LONGEST, BEYOND = 16384, 32768
"""The longest sequence of the table, and the one that is said not to fit."""


@dataclass(frozen=True)
class Contradiction:
    """`stated` is what the documents say, `computed` what comes out, units in the names; `why` joins them."""

    topic: str
    stated: dict[str, float]
    computed: dict[str, float]
    why: str


def seed_contradictions() -> list[Contradiction]:
    """One entry for each statement that its own document, or the one beside it, refutes."""
    return [
        _formula_value(),
        _formula_range(),
        _formula_against_table(),
        _what_has_to_fit(),
        _workspace(),
        _breakdown(),
        _what_is_saved(),
        _scaling(),
        _gradients(),
        _units(),
    ]


def _formula_bytes(seq_len: int) -> int:
    """The published estimate: two N×N arrays in float32, and the workspace."""
    return 2 * BATCH * seq_len**2 * 4 + 64 * MIB


def _formula_seq_len(capacity_bytes: int) -> float:
    return math.sqrt((capacity_bytes - 64 * MIB) / (2 * BATCH * 4))


def _total_bytes(seq_len: int, d_model: int, definition: str = "forward_peak") -> int:
    return sum(attention_memory(BATCH, seq_len, d_model, definition=definition).values())


def _fits(definition: str, softmax: str = "written_out", capacity_bytes: int = DEVICE_BYTES) -> dict[str, float]:
    def longest(d_model: int) -> int:
        return longest_that_fits(capacity_bytes, BATCH, d_model, definition=definition, softmax=softmax)

    name = f"{definition}_{softmax}_seq_len"
    return {f"{name}_d{d_model}": longest(d_model) for d_model in (D_MODELS[0], D_MODELS[-1])}


def _formula_value() -> Contradiction:
    as_printed = math.sqrt((98 * 1024 - 64) / 64)
    return Contradiction(
        "the value of the out-of-memory formula",
        {"seq_len": 39800},
        {"root_as_printed": as_printed, "seq_len": _formula_seq_len(DEVICE_BYTES)},
        "Under the root MiB are divided by bytes per squared position, so the root is in units of 1024 positions. "
        f"{as_printed:.2f} × 1024 is {_formula_seq_len(DEVICE_BYTES):,.0f}: 39 800 is neither.",
    )


def _formula_range() -> Contradiction:
    computed = {
        "formula_seq_len": _formula_seq_len(DEVICE_BYTES),
        **_fits("forward_peak"),
        **_fits("step_peak"),
        **_fits("forward_peak", "built_in"),
        **_fits("step_peak", "built_in"),
    }
    return Contradiction(
        "the range in which memory is said to run out",
        {"from_seq_len": LONGEST, "to_seq_len": BEYOND},
        computed,
        f"The formula's own answer is past the end of the range. It counts the 2 N×N arrays that are saved; the "
        f"forward peak holds 4, which fit up to {computed['forward_peak_written_out_seq_len_d16']:,.0f}, and a whole "
        f"step 6, which fit up to {computed['step_peak_written_out_seq_len_d16']:,.0f}. With the built-in softmax the "
        f"forward peak does hold 2 ({computed['forward_peak_built_in_seq_len_d16']:,.0f}), and a step 3.",
    )


def _formula_against_table() -> Contradiction:
    formula_mib, table_mib = _formula_bytes(LONGEST) / MIB, _total_bytes(LONGEST, 16) / MIB
    return Contradiction(
        "the formula against the table, at the longest sequence",
        {"mem_max_MiB": 32881.5, "formula_MiB": formula_mib},
        {
            "mem_max_MiB": table_mib,
            "formula_at_32768_GiB": _formula_bytes(BEYOND) / GIB,
            "forward_peak_at_32768_GiB": _total_bytes(BEYOND, 16) / GIB,
        },
        f"The formula gives {formula_mib:,.1f} MiB where the table has {table_mib:,.1f}, and at {BEYOND} it gives "
        f"{_formula_bytes(BEYOND) / GIB:.1f} GiB, which fit. The 130 GB of the notes for that length are the forward "
        f"peak, {_total_bytes(BEYOND, 16) / GIB:.1f} GiB.",
    )


def _what_has_to_fit() -> Contradiction:
    forward, step = _total_bytes(LONGEST, 16), _total_bytes(LONGEST, 16, "step_peak")
    return Contradiction(
        "what the peak of the table is the peak of",
        {"mem_max_MiB": 32881.5},
        {"forward_peak_MiB": forward / MIB, "step_peak_MiB": step / MIB, "step_peak_GiB": step / GIB},
        "mem_max_MB is read after the forward pass. The backward pass of the quotient holds 6 N×N arrays, so a step "
        f"needs {step / forward:.2f} times what the table says.",
    )


def _workspace() -> Contradiction:
    tensors = _total_bytes(256, 16) - attention_memory(BATCH, 256, 16)["workspace"]
    return Contradiction(
        "the workspaces of the forward and the backward pass",
        {"notes_MiB": 64 + 64, "table_MiB": 64},
        {"row_less_its_tensors_MiB": 72.7739 - tensors / MIB},
        "The notes have 64 MB for each pass; the smallest row of the table leaves room for 64 MiB in all.",
    )


def _breakdown() -> Contradiction:
    parts = {f"{name}_MiB": nbytes / MIB for name, nbytes in attention_memory(BATCH, 256, 16).items()}
    listed = 0.375 + 0.125 + 2 + 2 + 0.375 + 64
    measured = 72.7739
    return Contradiction(
        "the breakdown of the smallest row",
        {
            "listed_MiB": listed,
            "in_the_formula_MiB": 64 + 4.5 + 4,
            "measured_MiB": measured,
            "said_to_be_off_percent": 0.3,
        },
        {
            **parts,
            "total_MiB": sum(parts.values()),
            "listed_is_off_percent": 100 * (measured - listed) / measured,
            "listed_for_inputs_output_gradients_MiB": 0.375 + 0.125 + 0.375,
        },
        "The list has 2 N×N arrays and an output; at the peak 4 N×N arrays are alive and the output is not there yet. "
        "The 4.5 MB that the formula gives inputs, output and gradients are 0.875 MiB in the list above it.",
    )


def _what_is_saved() -> Contradiction:
    saved = attention_memory(BATCH, 256, 16, definition="saved")
    return Contradiction(
        "what is saved for the backward pass",
        {"scores_MiB": 2, "weights_MiB": 2, "add_mem_MiB": 4.02344},
        {**{f"{name}_MiB": nbytes / MIB for name, nbytes in saved.items()}, "total_MiB": sum(saved.values()) / MIB},
        "Not the scores: the exponentials and the weights, and beside them the positions of the maxima (int64) and the "
        "row sums, which make up what 2 + 2 leaves over.",
    )


def _scaling() -> Contradiction:
    short, long = (_total_bytes(seq_len, 16, "saved") for seq_len in (256, LONGEST))
    return Contradiction(
        "the scaling that is called exactly quadratic",
        {"times": 4096},
        {"times": long / short, "linear_bytes_per_position": (short - 2 * BATCH * 256**2 * 4) / 256},
        f"16385.5 / 4.02344 is {long / short:.1f}: the positions of the maxima and the row sums grow linearly.",
    )


def _gradients() -> Contradiction:
    sizes = {f"d{d}_MiB": attention_memory(BATCH, LONGEST, d)["gradients"] / MIB for d in D_MODELS}
    return Contradiction(
        "the gradients of Q, K and V at the longest sequence",
        {"gradients_MiB": 0.05},
        sizes,
        f"3 · 8 · {LONGEST} · d float32 numbers are {sizes['d16_MiB']:g} MiB at d = 16 already.",
    )


def _units() -> Contradiction:
    nbytes = _total_bytes(LONGEST, 16)
    return Contradiction(
        "MB and GB",
        {"peak_GB": 33, "device_GB": 98},
        {
            "peak_GiB": nbytes / GIB,
            "peak_GB": nbytes / 1e9,
            **{f"{name}_98GB": length for name, length in _fits("forward_peak", capacity_bytes=98 * 10**9).items()},
            **{f"{name}_98GiB": length for name, length in _fits("forward_peak").items()},
        },
        "The table's MB are MiB, and 33 GB are its 32 881.5 MiB divided by 1000: a unit between the two.",
    )
