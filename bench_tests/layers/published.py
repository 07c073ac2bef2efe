"""Published TFLOPS of layers and products on other devices: shown beside what is measured, never used to judge.

Each is the best of the published batches and sequences, with fp16 weights and eager attention. Forward and backward are
counted as three times forward although the input had no gradient (``counting="published"``), so those of BERT are 8 to
9 % too high, and those of T5's decoder 4 %.
"""

from __future__ import annotations

DEVICES = ("A100 80GB", "A6000", "V100 32GB", "3090 Ti")

HIDDEN = 1024
"""Width of the published layers; their feed-forward networks are four times as wide, and they have 16 heads."""

LAYER_TFLOPS = {
    ("bert", "fwd"): (110, 60, 53, 56),
    ("bert", "fwd_bwd"): (136, 70, 64, 62),
    ("gpt2", "fwd"): (45, 35, 32, 37),
    ("gpt2", "fwd_bwd"): (53, 38, 36, 39),
    ("t5-encoder", "fwd"): (44, 34, 31, 36),
    ("t5-encoder", "fwd_bwd"): (56, 41, 38, 41),
    ("t5-decoder", "fwd"): (38, 28, 26, 30),
    ("t5-decoder", "fwd_bwd"): (47, 34, 32, 36),
}
"""Layer and direction -> a figure for each of :data:`DEVICES`."""

THEORETICAL_TFLOPS = {
    "fp32": (None, None, 16, None),
    "tf32": (156, 75, None, 80),
    "fp16": (312, 150, 125, 160),
}
"""Number format -> the same, the peaks that the page holds its figures against. Those of the 3090 Ti are twice the
dense ones with accumulation in fp32, which the hardware table has."""

THEORETICAL_GB_PER_S = (2039, 768, 900, 1008)

MATRIX_PRODUCT_TFLOPS = {
    "fp32": (None, None, 14, None),
    "tf32": (116, 60, None, 42),
    "fp16": (230, 95, 95, 81),
}
"""Number format -> the same. Published as FP32 and FP16, where FP32 is TF32 on devices that have it."""

VECTOR_PRODUCT_TFLOPS = (0.202, 0.082, 0.098, 0.107)
"""Of which number format, is not said."""
