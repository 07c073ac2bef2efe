"""Count the floating-point operations of a step as it runs, by the same rules as its formula."""

from __future__ import annotations

from typing import Any


def counter() -> Any:
    """A ``FlopCounterMode`` that counts the *model's* FLOPs.

    torch's own formulas leave out the CPU's fused attention. In the backward pass of fused attention they count the
    scores that the kernel recomputes to save memory. Model FLOPs exclude recomputation (PaLM, arXiv 2204.02311,
    appendix B), so the backward pass counts twice the forward pass.
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
