"""TLE modules through the real front end of Triton 3.6, with a stub in the place of FlagTree's calls."""

import ast
import sys

import pytest

triton = pytest.importorskip("triton")
if not triton.__version__.startswith("3.6."):
    pytest.skip(f"FlagTree's front end is that of Triton 3.6, {triton.__version__} is installed", allow_module_level=True)

import tle_stub  # noqa: E402
from op_cases import CASES, Box, kernel_text  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tle_attn.codegen.prelude import prelude  # noqa: E402

TUPLE_WAIT = """
@jit
def k_tuple_wait(out):
    tile = alloc([64, 64], BF16)
    smem_store(tile, mma_zeros(64, 64, BF16).to(BF16))
    fence_async()
    one = wgmma(tile, tile)
    two = wgmma(tile, tile, trans_b=True)
    one, two = wgmma_wait(0, (one, two))
    store(out + rows(one)[:, None] * 64 + cols(one)[None, :], one + two)
"""


def write(folder, text: str):
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    path = folder / "frontend_module.py"
    path.write_text(prelude("tle", used) + "\n\n" + text)
    return path


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    loaded = tle_stub.load(write(tmp_path_factory.mktemp("frontend"), kernel_text() + TUPLE_WAIT))
    yield loaded
    del sys.modules[loaded.__name__]


def signature(case) -> dict[str, str]:
    return {
        name: f"tensordesc<{kind.dtype}[{','.join(map(str, kind.block_shape))}]>" if isinstance(kind, Box) else kind for name, kind in case.signature.items()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_operations_trace(module, case):
    assert "tt.func public" in tle_stub.trace(getattr(module, case.kernel), signature(case))


def test_a_tuple_of_results_is_waited_for_one_by_one(module):
    assert "tt.func public" in tle_stub.trace(module.k_tuple_wait, {"out": "*fp32"})


def test_a_plain_global_is_refused(tmp_path):
    """What the front end refuses shows: READY is a plain string in TLE."""
    text = "@jit\ndef k(out):\n    alloc_barriers(1, init=READY)\n"
    path = write(tmp_path, text)
    tle_stub.trace(tle_stub.load(path).k, {"out": "*fp32"})
    path.write_text(path.read_text().replace("READY = constexpr(tle.gpu.READY)", "READY = tle.gpu.READY"))
    with pytest.raises(Exception, match="(?s)READY"):
        tle_stub.trace(tle_stub.load(path).k, {"out": "*fp32"})


ASSEMBLY = """
@jit
def k_assembly(counter, out):
    grid_wait()
    fence_async()
    grid_launch_dependents()
    ticket = atomic_add(counter, 1, sem="release")
    seen = load_acquire(counter)
    while seen < 4:
        seen = load_acquire(counter)
    store(out, ticket + seen * cluster_rank())
"""


def test_assembly_compiles_for_hopper(tmp_path):
    """The inline assembly of the prelude is accepted by ptxas and keeps its meaning in PTX."""
    kernel = tle_stub.load(write(tmp_path, ASSEMBLY)).k_assembly
    compiled = triton.compile(ASTSource(kernel, {"counter": "*i32", "out": "*i32"}), target=tle_stub.HOPPER, options={"num_warps": 4})
    ptx = compiled.asm["ptx"]
    for instruction in (
        "@p ld.acquire.gpu.global.b32",
        "fence.proxy.async.shared::cta",
        "%cluster_ctarank",
        "griddepcontrol.wait",
        "griddepcontrol.launch_dependents",
        "atom.global.gpu.release.add",
    ):
        assert instruction in ptx, instruction
    assert compiled.asm["cubin"]
