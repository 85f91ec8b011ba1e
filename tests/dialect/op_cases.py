"""How each kernel of `op_kernels` is launched, and what it must compute: the reference is float64 arithmetic on the same inputs.

The same cases run on the emulation, on the emulated TLE and on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen

MARK = "# ==== kernel text: the same for every target"
KERNELS = tuple(Path(__file__).with_name("op_kernels") / f"{name}.py" for name in ("helpers", "programs", "shared", "products", "roles", "clusters"))


@frozen
class Box:
    """A TMA descriptor argument over the whole of its tensor, copied in boxes of this shape."""

    dtype: str
    block_shape: tuple[int, ...]


@frozen
class OpCase:
    """One launch of one kernel.

    Attributes:
        kernel: name in `op_kernels`.
        ops: operations of the dialect that it is there for.
        signature: argument -> Triton's type name, or Box.
        inputs: generator -> argument values: tensors and numbers; tensors that the kernel writes are among them, filled with a poison value.
        expected: inputs -> values of the tensors that the kernel writes (float64 or integers).
        grid: CTAs, or clusters where cluster > 1.
        warps: of the kernel itself.
        cluster: CTAs of a cluster.
        launch_pdl: launched with programmatic dependent launch.
        tolerance: largest allowed difference as a fraction of the largest expected value; 0 is bit-equality after rounding to the tensor's type.
        opcodes: machine instructions (sm_90a) that must occur.
    """

    kernel: str
    ops: tuple[str, ...] = field(converter=lambda text: tuple(text.split()))
    signature: dict[str, Any]
    inputs: Callable[[torch.Generator], dict[str, Any]]
    expected: Callable[[dict[str, Any]], dict[str, torch.Tensor]]
    grid: tuple[int, ...] = (1,)
    warps: int = 4
    cluster: int = 1
    launch_pdl: bool = False
    tolerance: float = 0.0
    opcodes: tuple[str, ...] = field(default=(), converter=lambda text: tuple(text.split()) if isinstance(text, str) else text)


def kernel_text() -> str:
    """The kernels, to be put behind a target's prelude."""
    return f"{MARK}\n" + "\n\n".join(file.read_text().split(f"{MARK}\n")[1] for file in KERNELS)


def ints(g: torch.Generator, *shape: int, low: int = -9, high: int = 10, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Whole numbers, exact in every type."""
    return torch.randint(low, high, shape, generator=g).to(dtype)


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=g).to(dtype)


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An output before the launch."""
    return torch.full(shape, -12345, dtype=dtype)


BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn


def _atomic(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"out": a["x"].reshape(8, 128).sum(0) * 2, "counter": torch.zeros(1, dtype=torch.int64), "partial": a["x"] * 2}


def _tickets(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    total = a["x"].reshape(4, 128).sum(0) * 2
    return {"out": total * torch.arange(1, 5)[:, None], "partial": a["x"] * 2, "counters": torch.zeros(2, dtype=torch.int64)}


def _masked(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    i = torch.arange(256)
    v = torch.where(i < a["n"], a["x"], -1)
    return {"out": torch.where(i == 3, -12345, torch.where(v > 0, v, i))}


def _elementwise(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x, y, n = a["x"].double(), a["y"].double(), a["n"]
    scalar = -(-n // 7) + max(n, 3) - min(n, 100)
    return {"out": torch.stack([torch.maximum(x, y), torch.minimum(x, y), torch.exp2(x), torch.log2(y), x / y, x + scalar])}


def _positions(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    row, column = torch.arange(64)[:, None], torch.arange(128)[None, :]
    return {"out": torch.stack([a["start"] + row - column, row * 1000 + a["start"] + column]).double()}


def _vectors(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    b = a["x"].double() * 2 + 0.5
    b = b - b.amax(1, keepdim=True)
    b = b - b.amax(0, keepdim=True)
    return {"out": b + a["v"].double()[:, None] + a["w"].double()[None, :]}


def _nan_from(x: torch.Tensor, row: int) -> torch.Tensor:
    x[row:] = float("nan")
    return x


def _shared(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x, v = a["x"].double(), a["v"].double()
    return {"out": torch.stack([x * v[0][:, None] + v[1][None, :], x * 2])}


def _copy(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    out = torch.zeros(a["n"], 64, 128, dtype=torch.float64)
    for i, page in enumerate(a["order"].tolist()):
        if 0 <= page < a["pages_desc"].shape[0]:
            out[i, :48] = a["pages_desc"][page, 1, 32:].double()
    return {"out": out}


def _tma_store(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"out_desc": a["x"].double()[:100]}


def _wgmma(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"out": (a["a"].double() @ a["b"].double()).expand(4, 64, 32)}


def _wgmma_pipelined(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    first, second = a["a"].double() @ a["b"].double()
    return {"out": torch.stack([first, second + 1, first + second + 1, first + second])}


def _wgmma_register(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    p = (a["q"].double() @ a["k"].double().T).to(BF16).double()
    return {"out": p @ a["v"].double()}


def _roles(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x_desc"].double().reshape(3, a["n"], 64, 64)
    return {"out": (x @ x).sum(1)}


def _turns(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    row = torch.arange(64, dtype=torch.float64)
    box, totals = row, [torch.zeros(64, dtype=torch.float64) for _ in range(2)]
    for turn in range(2 * a["n"]):
        box = totals[turn % 2] = totals[turn % 2] + 2 * box + row
    return {"out": torch.stack(totals)}


def _cluster_pull(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x"].double().reshape(2, 4, 16, 64)
    total = (x * torch.arange(1, 5).reshape(1, 4, 1, 1)).sum(1, keepdim=True)
    return {"out": total.expand(2, 4, 16, 64).reshape(8, 16, 64)}


def _cluster_store(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x"].double().reshape(2, 4, 16, 64).roll(1, 1)
    return {"out": (x - x.amax(3, keepdim=True)).reshape(8, 16, 64)}


def _cluster_push(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x"].double().reshape(2, 4, 16, 64)
    scale = torch.arange(1, 5).reshape(1, 4, 1, 1)
    first = x.sum(1, keepdim=True) * scale
    second = first.sum(1, keepdim=True) * scale
    return {"out": torch.stack([first, second], 2).reshape(16, 16, 64)}


def _cluster_roles(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x"].double().reshape(3, 2, 16, 64)
    maxima = x.amax(3).sum(1)[:, None, :, None]
    out = x[:, :1] - maxima * torch.tensor([1, 2]).reshape(1, 2, 1, 1)
    return {"out": torch.cat([out.reshape(-1), torch.full((6 * 32,), 7.0, dtype=torch.float64)])}


def _cluster_deal(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x"].double()
    return {"out": (x - x.amax(2, keepdim=True)).reshape(2, 4, 16, 64).sum(1).reshape(8, 4, 64)}


def _cluster_hands(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    x = a["x"].double().reshape(3, 2, 16, 64)
    return {"out": torch.cat([(x[:, 0] + 2 * x[:, 1]).reshape(-1), torch.full((6 * 32,), 7.0, dtype=torch.float64)])}


def _compact(a: dict[str, Any]) -> dict[str, torch.Tensor]:
    kept = [i * 10 + v for i, v in enumerate(a["x"].tolist()) if v > 0]
    return {"out": torch.tensor(kept + [-12345] * (512 - len(kept)) + [len(kept)])}


CASES = (
    OpCase("k_programs", "program_id num_programs static_range as_int64 store", {"out": "*i32"},
           lambda g: {"out": poison(6, 4, dtype=torch.int32)},
           lambda a: {"out": torch.arange(6)[:, None] * 10 + torch.arange(4)}, grid=(3, 2)),
    OpCase("k_masked", "load store where vec_index", {"x": "*i32", "out": "*i32", "n": "i32"},
           lambda g: {"x": ints(g, 256), "out": poison(256, dtype=torch.int32), "n": 177}, _masked),
    OpCase("k_atomic", "atomic_add", {"x": "*i32", "partial": "*i32", "counter": "*i32", "out": "*i32"},
           lambda g: {"x": ints(g, 8 * 128), "partial": poison(8 * 128, dtype=torch.int32), "counter": torch.zeros(1, dtype=torch.int32),
                      "out": poison(128, dtype=torch.int32)}, _atomic, grid=(8,), opcodes="ATOMG"),
    OpCase("k_poll", "atomic_add load_acquire", {"x": "*i32", "published": "*i32", "flag": "*i32", "out": "*i32"},
           lambda g: {"x": ints(g, 128), "published": poison(128, dtype=torch.int32), "flag": torch.zeros(1, dtype=torch.int32),
                      "out": poison(3, 128, dtype=torch.int32)},
           lambda a: {"out": ((a["x"] + 1) * 7).expand(3, 128), "published": a["x"] + 1, "flag": torch.tensor([7])}, grid=(4,), opcodes="CCTL.IVALL"),
    OpCase("k_tickets", "arrive_release wait_at_least take_ticket reset_after", {"x": "*i32", "partial": "*i32", "counters": "*i32", "out": "*i32"},
           lambda g: {"x": ints(g, 4 * 128), "partial": poison(4 * 128, dtype=torch.int32), "counters": torch.zeros(2, dtype=torch.int32),
                      "out": poison(4, 128, dtype=torch.int32)}, _tickets, grid=(4,), opcodes="REDG CCTL.IVALL"),
    OpCase("k_dependents", "grid_wait grid_launch_dependents", {"x": "*i32", "out": "*i32"},
           lambda g: {"x": ints(g, 128), "out": poison(128, dtype=torch.int32)}, lambda a: {"out": a["x"] + 1}, launch_pdl=True, opcodes="ACQBULK PREEXIT"),
    OpCase("k_elementwise", "maximum minimum exp2 log2 fdiv cdiv tile_index tile_zeros", {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"},
           lambda g: {"x": normal(g, 32, 64), "y": normal(g, 32, 64).abs() + 0.1, "out": poison(6, 32, 64), "n": 50}, _elementwise,
           tolerance=1e-6, opcodes="MUFU.EX2"),
    OpCase("k_reduce", "reduce_max reduce_sum rows cols", {"x": "*fp32", "row_max": "*fp32", "col_sum": "*fp32", "scalars": "*fp32"},
           lambda g: {"x": ints(g, 32, 64, dtype=F32), "row_max": poison(32), "col_sum": poison(64), "scalars": poison(2)},
           lambda a: {"row_max": a["x"].amax(1), "col_sum": a["x"].sum(0), "scalars": torch.stack([a["x"].max(), a["x"].sum()])}, opcodes="SHFL.BFLY"),
    OpCase("k_cumsum", "cumsum", {"x": "*i32", "out": "*i32"},
           lambda g: {"x": ints(g, 256), "out": poison(256, dtype=torch.int32)}, lambda a: {"out": a["x"].cumsum(0)}),
    OpCase("k_where_le", "where_le uniform", {"x": "*fp32", "out": "*fp32", "n": "i32"},
           lambda g: {"x": normal(g, 32, 64), "out": poison(32, 64), "n": 13},
           lambda a: {"out": torch.where(torch.arange(64) <= torch.arange(32)[:, None] + a["n"], a["x"].double(), -3.5)}, opcodes="REDUX"),
    OpCase("k_positions", "cols_from distances", {"out": "*fp32", "start": "i32"},
           lambda g: {"out": poison(2, 64, 128), "start": -70001}, _positions),
    OpCase("k_approximate", "absolute lg2 rcp", {"x": "*fp32", "out": "*fp32"},
           lambda g: {"x": torch.exp2(8 * torch.randn(32, 64, generator=g)) * (ints(g, 32, 64, low=0, high=2, dtype=F32) * 2 - 1), "out": poison(3, 32, 64)},
           lambda a: {"out": torch.stack([a["x"].double().abs(), a["x"].double().abs().log2(), 1 / a["x"].double().abs()])}, tolerance=1e-6, opcodes="MUFU.RCP MUFU.LG2"),
    OpCase("k_vectors", "full_rows full_cols like_rows like_cols move_rows move_cols", {"x": "*fp32", "v": "*fp32", "w": "*fp32", "out": "*fp32"},
           lambda g: {"x": ints(g, 32, 64, dtype=F32), "v": ints(g, 32, dtype=F32), "w": ints(g, 64, dtype=F32), "out": poison(32, 64)}, _vectors),
    OpCase("k_trans", "trans", {"x": "*fp32", "out": "*fp32"},
           lambda g: {"x": normal(g, 32, 64), "out": poison(64, 32)}, lambda a: {"out": a["x"].T}),
    OpCase("k_shared", "alloc alloc_plain smem_store smem_load smem_load_rows smem_load_cols role_sync", {"x": "*bf16", "v": "*fp32", "out": "*fp32"},
           lambda g: {"x": ints(g, 64, 64, dtype=BF16), "v": ints(g, 2, 64, dtype=F32), "out": poison(2, 64, 64)}, _shared, opcodes="STS LDS"),
    OpCase("k_zero_rows", "zero_rows", {"x": "*bf16", "y": "*fp8e4nv", "out": "*fp32", "n": "i32"},
           lambda g: {"x": _nan_from(normal(g, 64, 128, dtype=BF16), 37), "y": torch.full((64, 64), float("nan")).to(torch.float8_e4m3fn), "out": poison(64 * 128 + 64 * 64), "n": 37},
           lambda a: {"out": torch.cat([a["x"].double().nan_to_num(0.0).flatten(), torch.zeros(64 * 64, dtype=torch.float64)])}, opcodes="STS LDS"),
    OpCase("k_alias", "alias copy", {"pages_desc": Box("bf16", (1, 16, 64)), "out": "*bf16"},
           lambda g: {"pages_desc": normal(g, 4, 16, 128, dtype=BF16), "out": poison(64, 128, dtype=BF16)},
           lambda a: {"out": a["pages_desc"].flip(0).reshape(64, 128)}, opcodes="UTMALDG"),
    OpCase("k_copy", "copy alloc_barriers barrier_wait fence_async", {"pages_desc": Box("bf16", (1, 1, 64, 128)), "order": "*i32", "out": "*bf16", "n": "i32"},
           lambda g: {"pages_desc": normal(g, 3, 2, 80, 128, dtype=BF16), "order": torch.tensor([2, -1, 0, 1, 3, 2, 1 << 30], dtype=torch.int32),
                      "out": poison(7, 64, 128, dtype=BF16), "n": 7}, _copy, opcodes="UTMALDG SYNCS.PHASECHK"),
    OpCase("k_tma_store", "tma_store tma_store_wait", {"x": "*bf16", "out_desc": Box("bf16", (64, 64))},
           lambda g: {"x": normal(g, 128, 64, dtype=BF16), "out_desc": poison(100, 64, dtype=BF16)}, _tma_store, opcodes="UTMASTG"),
    OpCase("k_wgmma", "wgmma wgmma_wait mma_zeros", {"a": "*bf16", "b": "*bf16", "out": "*fp32"},
           lambda g: {"a": ints(g, 64, 64, dtype=BF16), "b": ints(g, 64, 32, dtype=BF16), "out": poison(4, 64, 32)}, _wgmma, opcodes="HGMMA"),
    OpCase("k_wgmma_pipelined", "wgmma wgmma_wait", {"a": "*fp16", "b": "*fp16", "out": "*fp32"},
           lambda g: {"a": ints(g, 2, 64, 64, dtype=F16), "b": ints(g, 64, 64, dtype=F16), "out": poison(4, 64, 64)}, _wgmma_pipelined, opcodes="HGMMA"),
    OpCase("k_operand", "smem_operand pin wide_rows", {"q": "*bf16", "k": "*bf16", "out": "*fp32"},
           lambda g: {"q": ints(g, 64, 128, dtype=BF16), "k": ints(g, 64, 128, dtype=BF16), "out": poison(64, 64)},
           lambda a: {"out": 3 * (a["q"].double() @ a["k"].double().T)}, opcodes="HGMMA LDSM"),
    OpCase("k_wgmma_register", "register_operand", {"q": "*bf16", "k": "*bf16", "v": "*bf16", "out": "*fp32"},
           lambda g: {"q": normal(g, 64, 128, dtype=BF16), "k": normal(g, 64, 128, dtype=BF16), "v": normal(g, 64, 128, dtype=BF16), "out": poison(64, 128)},
           _wgmma_register, tolerance=2e-3, opcodes="HGMMA"),
    OpCase("k_wgmma_fp8", "wgmma", {"a": "*fp8e4nv", "b": "*fp8e4nv", "out": "*fp32"},
           lambda g: {"a": ints(g, 64, 64, dtype=FP8), "b": ints(g, 16, 64, dtype=FP8), "out": poison(64, 16)},
           lambda a: {"out": a["a"].double() @ a["b"].double().T}, opcodes="QGMMA"),
    OpCase("k_roles", "warp_specialize barrier_arrive evict_first", {"x_desc": Box("bf16", (1, 64, 64)), "out": "*fp32", "n": "i32"},
           lambda g: {"x_desc": ints(g, 21, 64, 64, low=-3, high=4, dtype=BF16), "out": poison(3, 64, 64), "n": 7}, _roles,
           grid=(3,), opcodes="UTMALDG HGMMA USETMAXREG"),
    OpCase("k_named", "alloc_named named_wait named_arrive", {"x": "*i32", "out": "*i32", "n": "i32"},
           lambda g: {"x": ints(g, 10, 128), "out": poison(10, 128, dtype=torch.int32), "n": 10}, lambda a: {"out": a["x"] + 1}, opcodes="BAR.ARV BAR.SYNC"),
    OpCase("k_turns", "named_wait_for", {"out": "*fp32", "n": "i32"}, lambda g: {"out": poison(2, 64), "n": 5}, _turns, opcodes="BAR.ARV BAR.SYNC"),
    OpCase("k_cluster_pull", "cluster_dims cluster_barrier remote_load", {"x": "*fp32", "out": "*fp32"},
           lambda g: {"x": ints(g, 8, 16, 64, dtype=F32), "out": poison(8, 16, 64)}, _cluster_pull, grid=(2,), cluster=4, opcodes="UCGABAR_ARV UCGABAR_WAIT"),
    OpCase("k_cluster_store", "cluster_rank remote_store", {"x": "*fp32", "out": "*fp32"},
           lambda g: {"x": ints(g, 8, 16, 64, dtype=F32), "out": poison(8, 16, 64)}, _cluster_store, grid=(2,), cluster=4, opcodes="UCGABAR_ARV"),
    OpCase("k_cluster_push", "cluster_push cluster_push_wait", {"x": "*fp32", "out": "*fp32"},
           lambda g: {"x": ints(g, 8, 16, 64, dtype=F32), "out": poison(16, 16, 64)}, _cluster_push, grid=(2,), cluster=4, opcodes="STAS"),
    OpCase("k_cluster_roles", "cluster_push cluster_push_wait warp_specialize", {"x": "*fp32", "out": "*fp32", "n": "i32"},
           lambda g: {"x": ints(g, 6, 16, 64, dtype=F32), "out": poison(6 * 1024 + 6 * 32), "n": 6 * 1024},
           _cluster_roles, grid=(3,), cluster=2, opcodes="STAS UCGABAR_WAIT"),
    OpCase("k_cluster_deal", "cluster_deal remote_load_rows", {"x": "*fp32", "out": "*fp32"},
           lambda g: {"x": ints(g, 8, 16, 64, dtype=F32), "out": poison(8, 4, 64)}, _cluster_deal, grid=(2,), cluster=4, opcodes="STAS"),
    OpCase("k_cluster_hands", "cluster_arrive cluster_wait remote_load_rows", {"x": "*fp32", "out": "*fp32", "n": "i32"},
           lambda g: {"x": ints(g, 6, 16, 64, dtype=F32), "out": poison(6 * 512 + 6 * 32), "n": 6 * 512},
           _cluster_hands, grid=(3,), cluster=2, opcodes="SYNCS.ARRIVE UCGABAR_WAIT"),
    OpCase("k_compact", "compact", {"x": "*i32", "out": "*i32", "n": "i32"},
           lambda g: {"x": ints(g, 5 * 64), "out": poison(513, dtype=torch.int32), "n": 5}, _compact, warps=1, opcodes="VOTE.ANY POPC"),
)


def assert_right(case: OpCase, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Compare what a launch wrote with the reference.

    Args:
        case: the launched case.
        before: its inputs as they were.
        after: the same arguments after the launch, on any device.
    """
    for name, expected in case.expected(before).items():
        got = after[name].cpu().reshape(-1)
        want = expected.reshape(-1)
        if case.tolerance == 0:
            want = want.to(got.dtype)
            wrong = (got.double() != want.double()).nonzero().flatten()
        else:
            wrong = ((got.double() - want.double()).abs() > case.tolerance * want.double().abs().max()).nonzero().flatten()
        assert not len(wrong), f"{case.kernel}: {name}[{wrong[0]}] is {got[wrong[0]]}, not {want[wrong[0]]}; {len(wrong)} of {len(want)} elements are wrong"
