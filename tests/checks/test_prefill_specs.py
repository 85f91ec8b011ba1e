"""Prefill kernels that cannot be: what the error names, what it allows, and what a multiprocessor has room for."""

import pytest

from tle_attn.checks.resources import register_table
from tle_attn.components.cores.small_m import SmallM
from tle_attn.components.epilogues.store import StoreEpilogue
from tle_attn.components.epilogues.store_rows import StoreRows
from tle_attn.components.loaders.contiguous_tiles import ContiguousTiles
from tle_attn.components.loaders.paged_tma import PagedTma
from tle_attn.components.mainloops.decode import DecodeMainloop
from tle_attn.components.mainloops.prefill import PrefillMainloop
from tle_attn.components.masks.causal import Causal
from tle_attn.components.masks.expression import MaskExpression
from tle_attn.components.masks.length import Length
from tle_attn.components.masks.selected_tiles import SelectedTiles
from tle_attn.components.masks.sliding_window import SlidingWindow
from tle_attn.components.masks.tree import Tree
from tle_attn.components.rings.mbarrier import MbarrierRing
from tle_attn.components.scales.per_tensor import PerTensor
from tle_attn.components.scales.per_token_head import PerTokenHead
from tle_attn.components.schedulers.heavy_first import HeavyFirst
from tle_attn.components.schedulers.static_split import StaticSplit
from tle_attn.components.schedulers.task_map import TaskMap
from tle_attn.components.scores.sink import Sink
from tle_attn.components.scores.soft_cap import SoftCap
from tle_attn.components.softmax.online import OnlineSoftmax
from tle_attn.components.softmax.row_sigmoid import RowSigmoid
from tle_attn.components.softmax.rows import RowSoftmax
from tle_attn.components.softmax.sigmoid import SigmoidWeights
from tle_attn.components.tiles.block_mask import BlockMask
from tle_attn.components.v_operand.direct import DirectV
from tle_attn.components.v_operand.direct_rows import DirectRows
from tle_attn.components.v_operand.fp8_register import Fp8RegisterV
from tle_attn.components.v_operand.fp8_transpose import Fp8Transpose
from tle_attn.errors import PortError, ResourceError, SpecError
from tle_attn.spec import DType, Kernel, Problem

FP8 = Problem(dtype=DType.FP8)
TRANSPOSED = {"v_operand": Fp8Transpose(), "consumer_registers": 224, "producer_registers": 64}


def kernel(problem: Problem | None = None, stages: int = 2, **slots) -> Kernel:
    return Kernel(name="test", problem=problem or Problem(), mainloop=PrefillMainloop(ring=MbarrierRing(stages=stages), **slots))


@pytest.mark.parametrize("problem,slots,fitting", [
    (None, {"schedule": TaskMap()}, "schedule/heavy_first"),
    (None, {"schedule": StaticSplit()}, "schedule/heavy_first"),
    (None, {"softmax": OnlineSoftmax()}, "softmax/row_sigmoid, softmax/rows"),
    (None, {"softmax": SigmoidWeights()}, "softmax/row_sigmoid, softmax/rows"),
    (None, {"v_operand": DirectV()}, "v_operand/direct_rows, v_operand/fp8_transpose"),
    (FP8, {"v_operand": Fp8RegisterV(), "scale": PerTensor()}, "v_operand/direct_rows, v_operand/fp8_transpose"),
    (None, {"qk": SmallM()}, "qk/query_rows"),
    (None, {"loader": PagedTma()}, "loader/contiguous_tiles, loader/paged_tiles"),
    (None, {"epilogue": StoreEpilogue()}, "epilogue/store_rows, epilogue/store_tma"),
])  # fmt: skip
def test_a_block_of_decode_is_refused_and_one_of_prefill_named(problem, slots, fitting):
    with pytest.raises(PortError) as caught:
        kernel(problem, **slots)
    assert caught.value.allowed == fitting
    (slot, block), = ((slot, block) for slot, block in slots.items() if slot != "scale")
    assert caught.value.key.endswith(slot) and caught.value.value == block.NAME
    assert caught.value.message == f"mainloop/prefill cannot use {block.label()}" and "made for another mainloop" in caught.value.reason


@pytest.mark.parametrize("slots,fitting", [
    ({"schedule": HeavyFirst()}, "schedule/static_split, schedule/task_map"), ({"v_operand": DirectRows()}, "v_operand/direct"), ({"softmax": RowSoftmax()}, "softmax/online"), ({"softmax": RowSigmoid()}, "softmax/online"),
])  # fmt: skip
def test_a_block_of_prefill_in_a_decode_kernel(slots, fitting):
    with pytest.raises(PortError) as caught:
        Kernel(name="test", problem=Problem(), mainloop=DecodeMainloop(**slots))
    assert fitting in str(caught.value.allowed)


@pytest.mark.parametrize("problem,slots,key,parts", [
    (Problem(query_tokens=2), {}, "problem.query_tokens", ("query_tokens is an option of decode", "cu_seqlens_q")),
    (None, {"score": (SoftCap(cap=30.0),), "tiles": BlockMask()}, "tiles.block", ("a block mask goes with the causal mask alone", "allowed  all")),
    (None, {"mask": (Causal(), SlidingWindow(window=5)), "tiles": BlockMask()}, "tiles.block", ("a block mask goes with the causal mask alone",)),
    (None, {"mask": (SlidingWindow(window=5),)}, "mask", ("no mask ends a sequence's keys", 'block = "causal"')),
    (FP8, {"scale": PerTensor()}, "v_operand.block", ("wgmma reads fp8 operands key-contiguous only", "fp8_transpose")),
    (FP8, TRANSPOSED, "scale.block", ("fp8 tensors come with scales", "per_tensor, per_token_head")),
    (None, {"v_operand": Fp8Transpose()}, "v_operand.block", ("bf16 V needs no transpose", "direct_rows")),
    (None, {"scale": PerTensor()}, "scale.block", ("per_tensor scales are for fp8 tensors",)),
    (FP8, {**TRANSPOSED, "scale": PerTokenHead(), "loader": ContiguousTiles()}, "scale.block", ("beside the pages of a cache", "allowed  per_tensor")),
    (FP8, {**TRANSPOSED, "scale": PerTensor(), "stages": 1}, "ring.stages", ("a transposed V needs a second ring slot", "2 or more")),
    (Problem(page=32), {"loader": ContiguousTiles()}, "problem.page", ("K and V without pages have no page size", "64, the default", "change nothing")),
    (None, {"mask": (Causal(), Length())}, "mask", ("two masks end a sequence's keys",)),
    (None, {"mask": (Causal(), Tree())}, "mask", ("mask/tree is a mask of decode", "rows of one tile")),
    (None, {"mask": (Causal(), SelectedTiles())}, "mask", ("mask/selected_tiles is a mask of decode", "block_mask", "tiles of 64 tokens")),
    (None, {"mask": (Tree(),)}, "mask", ("mask/tree is a mask of decode", "rows of one tile")),
    (None, {"softmax": RowSigmoid(), "epilogue": StoreRows(lse="e")}, "epilogue.lse", ("softmax/row_sigmoid has no sum of weights", "softmax/rows")),
    (None, {"softmax": RowSigmoid(), "score": (Sink(),)}, "score", ("softmax/row_sigmoid has no sum of weights",)),
    (None, {"mask": (Causal(), MaskExpression(value="key % 2 == 0")), "tiles": BlockMask()}, "tiles.block", ("a block mask goes with the causal mask alone",)),
    (Problem(head_dim=256), {"tiles": BlockMask()}, "tiles.block", ("a block mask speaks of 128 keys at a time", "with heads of 256 a key tile has 64")),
    (Problem(head_dim=192), {}, "problem.value_dim", ("no heads of 192 elements with 192 values", "96, 128", "as wide as the first tile of K, 128 columns")),
    (Problem(head_dim=64, value_dim=128), {}, "problem.value_dim", ("no heads of 64 elements with 128 values", "as head_dim")),
    (None, {"consumers": 1, "exclusive_exp": True}, "exclusive_exp", ("one consumer has nobody to take turns with",)),
])  # fmt: skip
def test_options_that_contradict_each_other(problem, slots, key, parts):
    with pytest.raises(SpecError) as caught:
        kernel(problem, **slots)
    assert caught.value.key.endswith(key)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("problem,most,slots", [
    (Problem(), 3, {}), (Problem(head_dim=64), 6, {}), (FP8, 4, {**TRANSPOSED, "scale": PerTensor()}), (FP8, 4, {**TRANSPOSED, "scale": PerTokenHead()}),
])  # fmt: skip
def test_as_many_stages_as_fit(problem, most, slots):
    """227 KiB hold Q of two consumers (bf16 32, fp8 16 KiB for head_dim 128) and rings of K and V (32 KiB each a stage; fp8 16, and 16 for V^T)."""
    tile, q = 128 * problem.head_dim * problem.dtype.nbytes, 128 * problem.head_dim * problem.dtype.nbytes
    kinds = 3 if problem.dtype is DType.FP8 else 2
    assert q + most * kinds * tile <= 227 << 10 < q + (most + 1) * kinds * tile
    assert sum(b.nbytes for b in kernel(problem, most, **slots).resources.buffers) >= q + most * kinds * tile
    with pytest.raises(ResourceError, match="bytes of shared memory") as caught:
        kernel(problem, most + 1, **slots)
    assert "k_ring" in str(caught.value)


def test_registers():
    """What the second consumer and the producer do not take is the first consumer's."""
    with pytest.raises(ResourceError, match="236 registers per thread for role attend_2"):
        kernel(consumer_registers=236)
    assert register_table(kernel().resources) == [("attend", 4, 240), ("attend_2", 4, 240), ("produce", 1, 24)]
    # at launch 168 for each of 12 warps; (12 x 168 - 4 x 224 - 4 x 64) / 4 = 216
    assert register_table(kernel(FP8, **TRANSPOSED, scale=PerTensor()).resources) == [("attend", 4, 216), ("attend_2", 4, 224), ("produce", 4, 64)]
