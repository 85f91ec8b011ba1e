"""What decode and prefill refuse alike of the blocks in their slots."""

from __future__ import annotations

from tle_attn.errors import SpecError
from tle_attn.spec import Block


def check_keys_end(masks: tuple[Block, ...]) -> None:
    """SpecError unless one mask ends a sequence's keys."""
    ending, names = sum(getattr(mask, "BOUNDS_KEYS", False) for mask in masks), [mask.NAME for mask in masks]
    if ending == 0:
        raise SpecError(
            "no mask ends a sequence's keys at its length", key="mask", value=names, allowed='a list with block = "causal" in it',
            reason="keys are read in whole tiles, and what follows the last token in its tile is never written; a recipe's [[mask]] replaces its parent's list",
        )
    if ending > 1:
        raise SpecError("two masks end a sequence's keys", key="mask", value=names, allowed="one of causal, length, tree", reason="one stands in place of the other")


def check_value_scales(scale: Block, v_operand: Block) -> None:
    """SpecError where every key's values have a scale and products of key tiles are added in units of none."""
    sums = getattr(v_operand, "sums", None)
    if getattr(scale, "VALUE_SCALES") and sums != "fp32":
        raise SpecError(
            "V scales per token need key tiles that are added in fp32", key="v_operand.sums", value=sums, allowed='"fp32"',
            reason="the product of each tile has a factor of its own before it is added",
        )


def check_sums(softmax: Block, epilogue: Block, scores: tuple[Block, ...], normalised: str) -> None:
    """SpecError where something wants the sum of weights that are not normalised; `normalised`: the softmax that has one."""
    lse = getattr(epilogue, "lse")
    if not getattr(softmax, "NORMALISED") and (lse != "none" or any("log_sum" in score.HOOKS for score in scores)):
        key, value = ("epilogue.lse", lse) if lse != "none" else ("score", [score.NAME for score in scores])
        raise SpecError(f"{softmax.label()} has no sum of weights", key=key, value=value, allowed=f"{normalised} with it, or neither", reason="its weights are not normalised")
