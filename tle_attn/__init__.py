"""tle_attn: attention kernels for NVIDIA Hopper, composed from blocks.

    import tle_attn
    recipe = tle_attn.load("hy3/decode_bf16")
    plan = recipe.plan(batch=64, query_heads=8, kv_heads=1)
    out, lse = plan.run(q, k_cache, v_cache, block_ids, kv_lens)

Nothing here imports torch or triton until it is needed, and no import needs a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# In a source checkout the block library and the recipes are top-level folders; installed, they are inside this package.
_checkout = Path(__file__).resolve().parent.parent
if not (Path(__file__).parent / "components").is_dir() and (_checkout / "components").is_dir():
    __path__.append(str(_checkout))

_LAZY = {
    "cascade": "runtime",
    "export": "exports",
    "load": "recipe",
    "list_recipes": "recipe",
    "Recipe": "recipe",
    "Kernel": "spec",
    "Problem": "spec",
    "generate": "codegen",
    "merge_states": "ops",
    "plan": "runtime",
    "Plan": "runtime",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
