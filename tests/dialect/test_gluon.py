"""The Gluon prelude, compiled for sm_90a: every operation, and the compile hook."""

import importlib.util
import inspect
import re

import op_cases
import pytest
import torch
from op_cases import CASES, Box

from tle_attn.build import CompileError, Descriptor, compile_module
from tle_attn.codegen.prelude import whole
from tle_attn.dialect.table import DTYPES, MARKERS, OPS

triton = pytest.importorskip("triton")

PRELUDE = whole("gluon")
HEADER = "\n" + op_cases.MARK + "\n"


@pytest.fixture(scope="module", autouse=True)
def private_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """The prelude's names."""
    path = tmp_path_factory.mktemp("prelude") / "whole_gluon_prelude.py"
    path.write_text(PRELUDE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def compile_case(case, prelude=PRELUDE):
    signature = {name: Descriptor(kind.dtype, kind.block_shape) if isinstance(kind, Box) else kind for name, kind in case.signature.items()}
    return compile_module(prelude + op_cases.kernel_text(), case.kernel, signature, num_warps=case.warps, launch_pdl=case.launch_pdl)


def compile_text(text, signature, entry="k", prelude=PRELUDE, **options):
    return compile_module(prelude + HEADER + text, entry, signature, **{"num_warps": 4, **options})


# ---- every operation
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_kernel_compiles_to_the_expected_instructions_without_spills(case):
    kernel = compile_case(case)
    facts = kernel.facts
    assert (facts.spill_stores, facts.spill_loads, facts.stack_bytes) == (0, 0, 0)
    assert kernel.cluster == case.cluster
    present = set(facts.opcodes) | {name.split(".")[0] for name in facts.opcodes}
    assert set(case.opcodes) <= present
    assert not [w for w in kernel.warnings if "serializ" in w]


def test_cases_cover_every_operation():
    assert {op.name for op in OPS} - {name for case in CASES for name in case.ops} == set()


def test_cases_write_what_they_expect():
    """Every expected tensor belongs to an argument, has as many elements, and differs from what it held before."""
    for case in CASES:
        inputs = case.inputs(torch.Generator().manual_seed(1))
        assert list(inputs) == list(case.signature)
        for name, value in case.expected(inputs).items():
            assert value.numel() == inputs[name].numel(), (case.kernel, name)
            if name not in ("counter", "counters"):  # zero before, and zero again
                assert not torch.equal(value.reshape(-1).double(), inputs[name].reshape(-1).double()), (case.kernel, name)


def test_prelude_defines_the_table(namespace):
    missing = [name for name in (*(op.name for op in OPS), *DTYPES, *MARKERS) if name not in namespace]
    assert missing == []


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_signature_accepts_what_the_table_says(op, namespace):
    """Called by position, and by name where there is a default, as in the table's signature."""
    definition = inspect.signature(eval(f"lambda {op.signature[len(op.name) + 1:-1]}: None", {"PENDING": 0}))
    function = namespace[op.name]
    function = getattr(function, "fn", function)
    names = list(definition.parameters)
    required = [n for n in names if definition.parameters[n].default is inspect.Parameter.empty]
    optional = {n: None for n in names if n not in required}
    if op.name == "static_range":  # a class, whose constructor takes the bound first
        function = lambda arg1, arg2=None, step=None: None  # noqa: E731
    inspect.signature(function).bind(*required, **optional)
    own = inspect.getsource(inspect.unwrap(function)) if callable(function) and getattr(function, "__module__", "") == "whole_gluon_prelude" else ""
    if own:
        assert list(inspect.signature(function).parameters) == names


# ---- rules that the compiler would otherwise report in its own terms, or not at all
@pytest.mark.parametrize(("call", "message"), [
    ("wgmma(alloc([64, 64], FP8), alloc([64, 64], FP8))", "K-contiguous"),
    ("wgmma(alloc([64, 64], FP8), alloc([64, 64], FP8), trans_a=True, trans_b=True)", "K-contiguous"),
])
def test_fp8_operand_of_the_wrong_major(call, message):
    with pytest.raises(CompileError, match=message):
        compile_text(f"@jit\ndef k(out):\n    o = wgmma_wait(0, {call})\n    store(out + rows(o)[:, None] + cols(o)[None, :], o)\n", {"out": "*fp32"})


def test_alias_of_another_size():
    with pytest.raises(CompileError, match="alias"):
        compile_text("@jit\ndef k(out):\n    b = alias(alloc([2, 64, 64], BF16), [3, 32, 64])\n    t = smem_load(b.slot(0))\n"
                     "    store(out + rows(t)[:, None] + cols(t)[None, :], t)\n", {"out": "*bf16"})


def test_copy_needs_a_barrier_that_expects_bytes():
    text = "@jit\ndef k(x_desc):\n    tile = alloc([64, 64], BF16)\n    full = alloc_barriers(1)\n    copy(x_desc, tile, [64, 64], [0, 0], barrier=full[0])\n"
    with pytest.raises(CompileError, match="expect_bytes"):
        compile_text(text, {"x_desc": Descriptor("bf16", (64, 64))})


def test_compact_outside_of_a_one_warp_role():
    text = "@jit\ndef k(out):\n    i = vec_index(128)\n    store(out, compact(i, i, alloc_plain([128], I32), 0))\n"
    with pytest.raises(CompileError, match="one warp"):
        compile_text(text, {"out": "*i32"})


# ---- the compile hook
PUSH = next(case for case in CASES if case.kernel == "k_cluster_push")


def test_kernel_without_the_hook_does_not_compile(monkeypatch):
    """No cache can then hold a kernel that reads what an address should have been."""
    unhooked = PRELUDE.replace("_INSTALLED_HOOK = _install_compile_hook()", "_INSTALLED_HOOK = _HOOK")
    assert unhooked != PRELUDE
    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", None)
    with pytest.raises(CompileError, match="ptxas"):
        compile_case(PUSH, unhooked)


def test_address_is_an_offset_of_the_allocation_and_no_load():
    """Two buffers of 256 and 1024 bytes, one behind the other, and slot 2 of the larger."""
    text = """
@jit
def k(out):
    first = alloc_plain([64], I32)
    second = alloc_plain([4, 64], I32)
    store(out, _address(first.mem))
    store(out + 1, _address(second.mem))
    store(out + 2, _address(second.slot(2).mem))
"""
    kernel = compile_text(text, {"out": "*i32"})
    offsets = {int(number) for number in re.findall(r"add\.s32 \s*%r\d+, %r\d+, (\d+);", kernel.asm["ptx"])}
    starts = [{o, o + 512} for o in (0, 256)]
    assert kernel.shared_bytes == 1280
    assert offsets - {0} in [(s | {1024}) - {0} if 0 in s else s for s in starts]
    assert not {"LDS", "LDSM"} & set(kernel.facts.opcodes)


def test_cluster_barrier_between_roles_is_refused():
    text = """
@jit
def role(out):
    cluster_barrier()
    store(out + vec_index(128), 1)


@jit
def other(out):
    store(out + vec_index(32), 2)


@jit
def k(out):
    cluster_dims(2)
    warp_specialize([(role, (out,)), (other, (out,))], [1], [24])
"""
    with pytest.raises(CompileError, match="cluster_barrier.*only before warp_specialize"):
        compile_text(text, {"out": "*i32"})


def test_two_cluster_barriers_before_roles_are_refused():
    text = """
@jit
def role(out):
    store(out + vec_index(128), 1)


@jit
def k(out):
    cluster_dims(2)
    cluster_barrier()
    cluster_barrier()
    warp_specialize([(role, (out,)), (role, (out,))], [1], [24])
"""
    with pytest.raises(CompileError, match=r"2 calls of cluster_barrier\(\) in a warp-specialised kernel: allowed is one"):
        compile_text(text, {"out": "*i32"})


def test_warps_of_all_roles_arrive_at_a_cluster_barrier():
    """And do not wait there: on an H200 role 0 waited for their registers before it came to the barrier, and the kernel hung."""
    case = next(case for case in CASES if case.kernel == "k_cluster_roles")
    kernel = compile_case(case)
    assert kernel.num_warps == 8
    injected = re.search(r"setp\.ge\.u32 other, thread, 128; (.*) }", kernel.asm["ptx"])[1]
    assert (injected.count("barrier.cluster.arrive"), injected.count("barrier.cluster.wait")) == (1, 0)


def test_hook_leaves_other_kernels_and_the_users_hook_alone(monkeypatch, namespace):
    knobs = triton.knobs
    seen = []

    def users_hook(*arguments):
        seen.append(len(arguments))
        return ("user", "user") if not arguments else None

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", users_hook)
    plain = "@jit\ndef k(out):\n    store(out + vec_index(128), 3)\n"
    assert compile_text(plain, {"out": "*i32"}).facts == compile_text(plain + "\n", {"out": "*i32"}).facts
    assert knobs.runtime.add_stages_inspection_hook is users_hook
    assert 5 in seen
    hooked = namespace["_install_compile_hook"]
    hooked()
    ours = knobs.runtime.add_stages_inspection_hook
    hooked()
    assert knobs.runtime.add_stages_inspection_hook is ours is not users_hook
    assert ours() == ("user" + ours.name,) * 2
