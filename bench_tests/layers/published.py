"""Published TFLOPS of layers and products on other devices. Tables show them beside our figures; no verdict uses them.

Each figure is the best of the published batches and sequences, with fp16 weights and eager attention. Forward and
backward count as three times forward although the input had no gradient (``counting="published"``). The figures are
therefore 8 to 9 % too high for BERT and 4 % for T5's decoder.
"""

from __future__ import annotations

DEVICES = ("A100 80GB", "A6000", "V100 32GB", "3090 Ti")

HIDDEN = 1024
"""Width of the published layers. Their feed-forward networks are four times as wide, and they have 16 heads."""

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
"""Number format -> the peak of each of :data:`DEVICES` on the published page. The peaks of the 3090 Ti are twice the
dense peaks with fp32 accumulation in our hardware table."""

THEORETICAL_GB_PER_S = (2039, 768, 900, 1008)

MATRIX_PRODUCT_TFLOPS = {
    "fp32": (None, None, 14, None),
    "tf32": (116, 60, None, 42),
    "fp16": (230, 95, 95, 81),
}
"""Number format -> a figure for each of :data:`DEVICES`. The page publishes FP32 and FP16; its FP32 is TF32 on devices
that support TF32."""

VECTOR_PRODUCT_TFLOPS = (0.202, 0.082, 0.098, 0.107)
"""The page does not name the number format."""
