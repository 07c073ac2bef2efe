"""Counting the floating-point operations of a step as it runs, the way its formula counts them."""

from __future__ import annotations

from typing import Any


def counter() -> Any:
    """A ``FlopCounterMode`` that counts the *model's* FLOPs.

    torch's own formulas leave out the CPU's fused attention, and add to the backward of every fused attention the
    scores that the kernel computes again to save memory. Model FLOPs do not count recomputation (PaLM, arXiv
    2204.02311, appendix B): backward is twice forward.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    aten = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    def backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
        return 2 * forward(query, key, value)

    return FlopCounterMode(
        display=False,
        custom_mapping={
            aten._scaled_dot_product_flash_attention_for_cpu: forward,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
            aten._scaled_dot_product_flash_attention_backward: backward,
            aten._scaled_dot_product_efficient_attention_backward: backward,
            aten._scaled_dot_product_cudnn_attention_backward: backward,
        },
    )
