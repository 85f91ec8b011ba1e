"""Every rule of the emulated TLE is checked: an illegal use is reported with the rule and the line."""

import pytest
from tle_modules import run_snippet

from tle_attn import emu
from tle_attn.emu.tle_target import TLEContractError
from tle_attn.emu.tle_target.gpu import wgmma
from tle_attn.emu.tle_target.shared import BufferedTensor

TILE = "t = tle.gpu.alloc([64, 64], tl.bfloat16)"
FULL = "tle.gpu.alloc_barrier(expect_bytes=8192)"

ILLEGAL = {
    # ---- compile-time values
    "constexpr parameter": ("static_argument(n)", "static_argument: n is a constexpr parameter"),
    "constexpr function": ("cluster(n)", "cluster is a constexpr function"),
    "constexpr": ("tl.constexpr(n)", "constexpr of a runtime value"),
    "static_range": ("for i in tl.static_range(n):\n    pass", "static_range: bounds must be compile-time"),
    "arange bounds": ("tl.arange(0, n)", "arange: bounds must be compile-time"),
    "arange power of two": ("tl.arange(0, 48)", "powers of two"),
    "full power of two": ("tl.full([48], 0.0, tl.float32)", "powers of two"),
    "full static": ("tl.zeros([n], tl.float32)", "compile-time integers"),
    "full dtype": ("tl.full([64], 0.0, 'f32')", "dtype must be a tl.dtype"),
    "full scalar": ("tl.full([64], tl.arange(0, 64), tl.int32)", "value must be a scalar"),
    "reshape static": ("tl.reshape(tl.zeros([64], tl.float32), [n, 1])", "compile-time integers"),
    "reduction axis": ("tl.max(tl.zeros([64], tl.float32), n)", "axis must be a compile-time"),
    "program count axis": ("tl.num_programs(-1)", "axis must be 0, 1 or 2"),
    "program axis": ("tl.program_id(3)", "axis must be 0, 1 or 2"),
    "range partitions": ("for i in tl.range(0, 4, warp_specialize=True):\n    pass", "the partitions are written out"),
    # ---- global memory
    "other without mask": ("tl.load(x, other=0.0)", "other needs a mask"),
    "boundary check": ("tl.load(x, boundary_check=(0,))", "block pointers"),
    "store boundary check": ("tl.store(x, 1.0, boundary_check=(0,))", "block pointers"),
    "atomic sem": ("tl.atomic_add(counter, 1, sem='seq_cst')", "sem must be one of"),
    "atomic scope": ("tl.atomic_add(counter, 1, scope='block')", "scope must be gpu"),
    # ---- assembly
    "assembly constraints": (
        "tl.inline_asm_elementwise('mov.u32 $0, %cluster_ctarank;', '=l', [], dtype=tl.int32, is_pure=True, pack=1)",
        "the operands are '=r'",
    ),
    "assembly inputs": ("tl.inline_asm_elementwise('mov.u32 $0, %cluster_ctarank;', '=r', [n], dtype=tl.int32, is_pure=True, pack=1)", "has 0 input"),
    "assembly type": ("tl.inline_asm_elementwise('mov.u32 $0, %cluster_ctarank;', '=r', [], dtype=tl.int64, is_pure=True, pack=1)", "gives i32"),
    "assembly purity": (
        "tl.inline_asm_elementwise('fence.proxy.async.shared::cta; // dummy $0', '=r', [], dtype=tl.int32, is_pure=True, pack=1)",
        "is_pure must be False",
    ),
    "assembly pack": ("tl.inline_asm_elementwise('mov.u32 $0, %cluster_ctarank;', '=r', [], dtype=tl.int32, is_pure=True, pack=2)", "pack must be 1"),
    # ---- alloc
    "alloc empty": ("tle.gpu.alloc([], tl.float32)", "non-empty"),
    "alloc shape": ("tle.gpu.alloc([64, n], tl.float32)", "compile-time integers > 0"),
    "alloc zero": ("tle.gpu.alloc([64, 0], tl.float32)", "compile-time integers > 0"),
    "alloc dtype": ("tle.gpu.alloc([64, 64], 'bf16')", "dtype must be a tl.dtype"),
    "alloc scope": ("tle.gpu.alloc([64, 64], tl.float32, scope='smem')", "scope must be tle.gpu.smem"),
    "alloc tensor memory": ("tle.gpu.alloc([64, 64], tl.float32, scope=tle.gpu.tmem)", "not yet supported"),
    "alloc layout flag": ("tle.gpu.alloc([64, 64], tl.float32, nv_mma_shared_layout=n)", "compile-time bool"),
    "alias with value": (
        "a = tle.gpu.alloc([64, 64], tl.float32)\ntle.gpu.alloc([64, 64], tl.float32, alias=a, init_value=tl.zeros([64, 64], tl.float32))",
        "cannot have an init_value",
    ),
    "alias source": ("tle.gpu.alloc([64, 64], tl.float32, alias=x)", "alias must be a buffered_tensor"),
    "alias offset": (
        "a = tle.gpu.alloc([64, 64], tl.float32)\ntle.gpu.alloc([32, 64], tl.float32, alias=a, alias_offset_bytes=n)",
        "compile-time integer >= 0",
    ),
    "alias alignment": ("a = tle.gpu.alloc([64, 64], tl.float32)\ntle.gpu.alloc([32, 64], tl.float32, alias=a, alias_offset_bytes=2)", "is not aligned"),
    "alias bounds": (
        "a = tle.gpu.alloc([64, 64], tl.float32)\ntle.gpu.alloc([64, 64], tl.float32, alias=a, alias_offset_bytes=4)",
        "the alias ends at byte 16388 of a buffer of 16384",
    ),
    "slot rank": ("tle.gpu.alloc([64], tl.float32, nv_mma_shared_layout=False).slot(0)", "rank >= 2"),
    "slot tensor": ("tle.gpu.alloc([2, 64, 64], tl.float32).slot(tl.arange(0, 2))", "scalar int32"),
    "slot width": ("tle.gpu.alloc([2, 64, 64], tl.float32).slot(wide)", "must be int32, got int64"),
    "reshape size": ("tle.gpu.alloc([64, 64], tl.float32).reshape([64, 32])", "have different sizes"),
    "reshape dimensions": ("tle.gpu.alloc([64, 64], tl.float32).reshape([64, n])", "compile-time integers > 0"),
    # ---- local_ptr
    "pointer of a tensor": ("tle.gpu.local_ptr(x)", "not a buffered_tensor"),
    "index count": ("tle.gpu.local_ptr(tle.gpu.alloc([64, 64], tl.float32), [tl.arange(0, 64)])", "1 indices for a buffer of rank 2"),
    "index mix": ("tle.gpu.local_ptr(tle.gpu.alloc([64, 64], tl.float32), [tl.arange(0, 64), n])", "no broadcast"),
    "index shapes": ("tle.gpu.local_ptr(tle.gpu.alloc([64, 64], tl.float32), [tl.arange(0, 64), tl.arange(0, 32)])", "identical shapes"),
    "index type": ("tle.gpu.local_ptr(tle.gpu.alloc([64], tl.float32), [tl.zeros([64], tl.float32)])", "integer type"),
    "index kind": ("tle.gpu.local_ptr(tle.gpu.alloc([64], tl.float32), ['a'])", "indices must be integers"),
    "index sequence": ("tle.gpu.local_ptr(tle.gpu.alloc([64], tl.float32), tl.arange(0, 64))", "indices must be a list or tuple"),
    "store of a scalar": ("tl.store(tle.gpu.local_ptr(tle.gpu.alloc([64, 64], tl.float32)), 1.0)", "needs a tensor"),
    "store shape": (
        "tl.store(tle.gpu.local_ptr(tle.gpu.alloc([64, 64], tl.float32)), tl.zeros([64, 32], tl.float32))",
        "store of [64, 32] through local_ptr of [64, 64]",
    ),
    "masked store shapes": (
        "p = tle.gpu.local_ptr(tle.gpu.alloc([64], tl.int32), [tl.arange(0, 64)])\ntl.store(p, tl.arange(0, 32), mask=tl.arange(0, 64) < n)",
        "store of [32] through [64] pointers",
    ),
    # ---- barriers
    "barrier count": ("tle.gpu.alloc_barriers(n)", "num_barriers must be a compile-time integer > 0"),
    "arrive count": ("tle.gpu.alloc_barriers(1, 0)", "arrive_count must be a compile-time integer > 0"),
    "barrier init": ("tle.gpu.alloc_barriers(1, init=1)", "init must be tle.gpu.PENDING or tle.gpu.READY"),
    "expected bytes": ("tle.gpu.alloc_barriers(1, expect_bytes=0)", "expect_bytes must be None or a compile-time integer > 0"),
    "index bounds": ("tle.gpu.alloc_barriers(2)[2]", "barrier index 2 of 2"),
    "index again": ("tle.gpu.alloc_barriers(2)[0][0]", "cannot be indexed again"),
    "barrier index kind": ("tle.gpu.alloc_barriers(2)[tl.arange(0, 2)]", "must be a scalar integer"),
    "wait on something else": ("tle.gpu.barrier_wait(x, phaseIdx=0)", "expects a tle.gpu barrier"),
    "phase tensor": ("tle.gpu.barrier_wait(tle.gpu.alloc_barrier(), phaseIdx=tl.arange(0, 2))", "phaseIdx must be a scalar"),
    "phase kind": ("tle.gpu.barrier_arrive(tle.gpu.alloc_barrier(), phaseIdx=1.0)", "phaseIdx must be an integer"),
    "named READY": ("tle.gpu.barrier_arrive(tle.gpu.alloc_barrier(init=tle.gpu.READY))", "does not support READY"),
    "named bytes": ("tle.gpu.barrier_wait(tle.gpu.alloc_barrier(expect_bytes=64))", "with expect_bytes requires phaseIdx"),
    "named dynamic index": ("tle.gpu.barrier_wait(tle.gpu.alloc_barriers(4)[n])", "needs a compile-time index"),
    "named arrivals": ("tle.gpu.barrier_arrive(tle.gpu.alloc_barrier(256), 2)", "arrive_count must be 1"),
    "arrivals static": ("tle.gpu.barrier_arrive(tle.gpu.alloc_barrier(), n, phaseIdx=0)", "arrive_count must be a compile-time"),
    "mixed barrier": (
        "b = tle.gpu.alloc_barriers(1, 256)\ntle.gpu.barrier_arrive(b[0], phaseIdx=0)\ntle.gpu.barrier_arrive(b[0])",
        "cannot mix named and mbarrier backends",
    ),
    "named ids": ("for i in tl.static_range(15):\n    b = tle.gpu.alloc_barriers(1, 256)\n    tle.gpu.barrier_arrive(b[0])", "out of named barriers"),
    # ---- copy
    "copy kinds": ("tle.gpu.copy(desc, desc, [64, 64], [0, 0])", "one side is global memory"),
    "copy shape": (TILE + "\ntle.gpu.copy(desc, t, 64, [0, 0], " + FULL + ")", "shape must be a list"),
    "copy offsets": (TILE + "\ntle.gpu.copy(desc, t, [64, 64], [0], " + FULL + ")", "no 2 offsets"),
    "copy offset width": (TILE + "\ntle.gpu.copy(desc, t, [64, 64], [wide, 0], " + FULL + ")", "int32, got int64"),
    "copy offset kind": (TILE + "\ntle.gpu.copy(desc, t, [64, 64], [0.0, 0], " + FULL + ")", "integer scalars"),
    "copy layout": (
        "t = tle.gpu.alloc([64, 64], tl.bfloat16, nv_mma_shared_layout=False)\ntle.gpu.copy(desc, t, [64, 64], [0, 0], " + FULL + ")",
        "NVMMA layout",
    ),
    "copy array": (TILE + "\ntle.gpu.copy(desc, t, [64, 64], [0, 0], tle.gpu.alloc_barriers(2, expect_bytes=8192))", "must be indexed"),
    "copy barrier": (TILE + "\ntle.gpu.copy(desc, t, [64, 64], [0, 0], tle.gpu.alloc_barrier())", "allocated with expect_bytes"),
    "copy mask": (TILE + "\ntle.gpu.copy(desc, t, [64, 64], [0, 0], mask=n)", "take no mask"),
    "store barrier": (TILE + "\ntle.gpu.copy(t, desc, [64, 64], [0, 0], " + FULL + ")", "takes no barrier"),
    "pointer barrier": (TILE + "\ntle.gpu.copy(x, t, [64, 64], barrier=" + FULL + ")", "only for TMA copies"),
    # ---- wgmma
    "b in registers": ("tle.gpu.wgmma(tle.gpu.alloc([64, 64], tl.bfloat16), tl.zeros([64, 64], tl.bfloat16))", "b must be a shared-memory"),
    "a elsewhere": ("tle.gpu.wgmma(x, tle.gpu.alloc([64, 64], tl.bfloat16))", "a must be a buffered_tensor or a tensor"),
    "transpose flag": (TILE + "\ntle.gpu.wgmma(t, t, trans_b=n)", "compile-time bools"),
    "plain operand": ("t = tle.gpu.alloc([64, 64], tl.bfloat16, nv_mma_shared_layout=False)\ntle.gpu.wgmma(t, t)", "must have the NVMMA layout"),
    "ring operand": ("t = tle.gpu.alloc([2, 64, 64], tl.bfloat16)\ntle.gpu.wgmma(t, t)", "must be of rank 2"),
    "K": ("tle.gpu.wgmma(tle.gpu.alloc([64, 32], tl.bfloat16), tle.gpu.alloc([64, 64], tl.bfloat16))", "a is [64, 32] and b is [64, 64]"),
    "M": ("tle.gpu.wgmma(tle.gpu.alloc([32, 64], tl.bfloat16), tle.gpu.alloc([64, 64], tl.bfloat16))", "M must be a multiple of 64"),
    "small K": ("tle.gpu.wgmma(tl.zeros([64, 8], tl.float32), tle.gpu.alloc([8, 64], tl.float32))", "K must be at least 16"),
    "operand types": ("tle.gpu.wgmma(tle.gpu.alloc([64, 64], tl.bfloat16), tle.gpu.alloc([64, 64], tl.float16))", "same type"),
    "operand type": ("tle.gpu.wgmma(tle.gpu.alloc([64, 64], tl.int32), tle.gpu.alloc([64, 64], tl.int32))", "unsupported operand type"),
    "fp8 b": ("t = tle.gpu.alloc([64, 64], tl.float8e4nv)\ntle.gpu.wgmma(t, t)", "K-contiguous"),
    "fp8 a": ("t = tle.gpu.alloc([64, 64], tl.float8e4nv)\ntle.gpu.wgmma(t, t, trans_a=True, trans_b=True)", "K-contiguous"),
    "result type": (TILE + "\ntle.gpu.wgmma(t, t, out_dtype=tl.bfloat16)", "bfloat16 is unsupported"),
    "result kind": (TILE + "\ntle.gpu.wgmma(t, t, out_dtype='f32')", "out_dtype must be a tl.dtype"),
    "acc kind": (TILE + "\ntle.gpu.wgmma(t, t, 0.0)", "acc must be a tensor"),
    "acc shape": (TILE + "\ntle.gpu.wgmma(t, t, tl.zeros([64, 32], tl.float32))", "acc must be [64, 64]"),
    "acc type": (TILE + "\ntle.gpu.wgmma(t, t, tl.zeros([64, 64], tl.bfloat16))", "acc must be f32"),
    "imprecise accumulation": (
        "t = tle.gpu.alloc([64, 64], tl.float8e4nv)\ntle.gpu.wgmma(t, t, trans_b=True, max_num_imprecise_acc=16)",
        "compile-time integer >= 32",
    ),
    "wait count": ("tle.gpu.wgmma_wait(n, tl.zeros([64, 64], tl.float32))", "pendings must be a compile-time integer"),
    "wait for a tuple": ("tle.gpu.wgmma_wait(0, (tl.zeros([64, 64], tl.float32),))", "acc must be one tensor"),
    # ---- warp_specialize
    "no partition": ("tle.gpu.warp_specialize([], [], [])", "at least the default partition"),
    "entry": ("tle.gpu.warp_specialize([(nothing, (), 1)], [], [])", "entry 0 must be (function, args)"),
    "entry arguments": ("tle.gpu.warp_specialize([(nothing, [])], [], [])", "a tuple of its arguments"),
    "warp counts": ("tle.gpu.warp_specialize([(nothing, ()), (nothing, ())], [], [24])", "1 worker function(s) but 0 warp counts"),
    "register counts": ("tle.gpu.warp_specialize([(nothing, ()), (nothing, ())], [1], [])", "1 worker function(s) but 0 register counts"),
    "static counts": ("tle.gpu.warp_specialize([(nothing, ()), (nothing, ())], [n], [24])", "list of compile-time integers"),
    # ---- clusters
    "mesh kind": ("tle.shard_id(2, 'cluster_x')", "mesh must be a device_mesh"),
    "mesh topology": ("tle.device_mesh({})", "non-empty mapping"),
    "mesh level": ("tle.device_mesh({'block_cluster': 2.0})", "must be a size or a list"),
    "mesh entry": ("tle.device_mesh({'block_cluster': ['x']})", "is not (name, size)"),
    "mesh size": ("tle.device_mesh({'block_cluster': [('cluster_x', n)]})", "sizes must be compile-time integers > 0"),
    "mesh names": ("tle.device_mesh({'block_cluster': [('cluster_x', 2), ('cluster_x', 2)]})", "names must be unique"),
    "mesh level name": ("tle.device_mesh({1: 2})", "invalid level name"),
    "mesh axis": ("tle.shard_id(cluster(1), 'y')", "unknown axis 'y'"),
    "remote twice": ("b = tle.remote(tle.gpu.alloc([64], tl.float32), 0)\ntle.remote(b, 0)", "cannot be applied twice"),
    "remote rank sign": ("tle.remote(tle.gpu.alloc([64], tl.float32), -1)", "must be >= 0"),
    "remote rank width": ("tle.remote(tle.gpu.alloc([64], tl.float32), wide)", "must be int32, got int64"),
    "remote rank tensor": ("tle.remote(tle.gpu.alloc([64], tl.float32), tl.arange(0, 2))", "must be a scalar int32"),
    "remote rank kind": ("tle.remote(tle.gpu.alloc([64], tl.float32), 0.0)", "must be an integer"),
    "remote coordinates": ("tle.remote(tle.gpu.alloc([64], tl.float32), (0,))", "need scope="),
    "remote coordinate rank": ("tle.remote(tle.gpu.alloc([64], tl.float32), (0, 0), scope=cluster(1))", "2 coordinate(s) for a mesh of rank 1"),
    "remote coordinate bounds": ("tle.remote(tle.gpu.alloc([64], tl.float32), (1,), scope=cluster(1))", "outside of the mesh"),
    "remote coordinate values": ("tle.remote(tle.gpu.alloc([64], tl.float32), (n,), scope=cluster(1))", "coordinates must be compile-time"),
    "remote scope": ("tle.remote(tle.gpu.alloc([64], tl.float32), 0, scope=2)", "scope must be a device_mesh"),
    "remote operand": ("b = tle.remote(tle.gpu.alloc([64, 64], tl.bfloat16), 0)\ntle.gpu.wgmma(b, b)", "only local_ptr reaches it"),
    # ---- device functions
    "raw outputs": ("tle_raw.call(twice, [tl.zeros([64], tl.float32), tl.zeros([64], tl.float32)])", "twice is deferred and needs output_indices"),
    "raw function": ("tle_raw.call(nothing, [])", "not a function declared with @dialect"),
    "raw arguments": ("tle_raw.call(fill, n)", "args must be a list or tuple"),
    "raw indices": ("tle_raw.call(twice, [tl.zeros([64], tl.float32)], output_indices=[1])", "output_indices [1] for 1 argument(s)"),
    "raw definition": ("tle_raw.call(unknown, [n])", "without a definition of unknown"),
    "raw tensor": (
        "tle_raw.call(twice, [tle.gpu.alloc([64], tl.float32), tl.zeros([64], tl.float32)], output_indices=[0])",
        "output arguments must be tensors",
    ),
    "raw buffer": ("tle_raw.call_smem(fill, [tl.zeros([64], tl.float32)], output_indices=[0])", "output arguments must be buffers"),
    "raw result": (
        "tle_raw.call(twice, [tl.zeros([32], tl.float32), tl.zeros([64], tl.float32)], output_indices=[0])",
        "a result is f32[64], its output argument 0 is f32[32]",
    ),
    "raw result count": ("tle_raw.call(twice, [n, tl.zeros([64], tl.float32), tl.zeros([64], tl.float32)], output_indices=[1, 2])", "1 result(s) for 2 output"),
    "raw result unused": ("tle_raw.call(twice, [n, n], output_indices=[])", "its definition returns a value"),
    "dialect name": ("dialect(name='hip', file='a.cu', extern_func_name='a')", "name must be 'cuda' or 'mlir'"),
    "dialect file": ("dialect(name='cuda')", "needs file and extern_func_name"),
}


@pytest.mark.parametrize(("body", "rule"), ILLEGAL.values(), ids=ILLEGAL)
def test_illegal_uses_are_reported(tmp_path, body, rule):
    with pytest.raises(TLEContractError) as caught:
        run_snippet(tmp_path, body)
    assert rule in str(caught.value)
    assert "at kernel:" in str(caught.value), "the report names the line of the kernel text"


def test_wgmma_columns():
    """N = 12: no allocation of the emulation has such a tile."""
    a, b = (BufferedTensor(None, emu.BF16, shape, True) for shape in ((64, 16), (16, 12)))
    with pytest.raises(TLEContractError, match="N must be a multiple of 8, got 12"):
        wgmma(a, b)
