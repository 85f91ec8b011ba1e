"""The static check of a TLE module, and the table of documented names behind it."""

import inspect
import re
from pathlib import Path

import pytest
from tle_modules import kernel_text, module_source

from tle_attn.emu.tle_target import TLEContractError, check_contract, load_tle_module, loader
from tle_attn.emu.tle_target.api import NEWEST, names

GOLDEN = sorted((Path(__file__).parent.parent / "golden").glob("*_tle.py"))

HEADER = """import triton
import triton.language as tl
import triton.experimental.tle.language as tle
import triton.experimental.tle.language.raw as tle_raw
from triton.experimental.tle.raw import dialect
from triton.language.extra.cuda import gdc_wait
"""


@pytest.mark.parametrize("name", ["decode", "decode_fp8", "decode_window_cap", "prefill", "split_merge"])
def test_modules_of_the_kernels_pass(name):
    check_contract(module_source(kernel_text(name)))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_generated_modules_pass_and_load(path):
    check_contract(path.read_text())
    load_tle_module(path)


def test_legal_code_passes():
    check_contract(
        HEADER
        + """
jit = triton.jit
take = tl.load
READY = tl.constexpr(tle.gpu.READY)


@jit
def kernel(x, load, tle_buffer: tl.constexpr = tl.constexpr(1)):
    load(1, 2, 3, 4, 5, 6, 7, 8, 9)
    take(x, mask=x < 3, other=0, cache_modifier=".cg")
    tl.reshape(x, 1, 2, 3)
    tl.float32.primitive_bitwidth
    tle.gpu.alloc([1], tl.float32, alias=x, nv_mma_shared_layout=False)
    tle_raw.call(x, [x], output_indices=[0])
    gdc_wait()
    tle = x
    tle.gpu.no_such_name()
"""
    )


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("tl.no_such_name", "triton.language.no_such_name is not documented"),
        ("tle.no_such_name(1)", "triton.experimental.tle.language.no_such_name is not documented"),
        ("tle.gpu.no_such_name", "triton.experimental.tle.language.gpu.no_such_name is not documented"),
        ("tle.concat_dot_fragments([], 1)", "exists only on FlagTree's development branch, not in 0.7.0"),
        ("import triton.experimental.gluon", "module triton.experimental.gluon is not documented"),
        ("from triton.language.extra.cuda import smid", "triton.language.extra.cuda.smid is not documented"),
        ("triton.no_such_name", "triton.no_such_name is not documented"),
        ("tl.load(1, masks=2)", "has no parameter 'masks'"),
        ("tl.load()", "lacks pointer"),
        ("tl.load(1, pointer=2)", "got two values for 'pointer'"),
        ("tl.program_id(0, 1)", "takes 1 positional argument(s), got 2"),
        ("tle.gpu.alloc([1], tl.float32, None, None, None)", "takes 4 positional argument(s), got 5 (init_value, alias"),
        ("tle.gpu.alloc_barriers(1, arrival_mode='participant')", "has no parameter 'arrival_mode'"),
        ("tle.gpu.warp_specialize([], [], reuse_default_warps=True)", "has no parameter 'reuse_default_warps'"),
        ("dialect('cuda')", "takes 0 positional argument(s), got 1"),
        ("tle_raw.call(1)", "lacks args"),
        ("gdc_wait(1)", "takes 0 positional argument(s), got 1"),
        ("tl.bfloat16(1)", "triton.language.bfloat16 is not callable"),
        ("tl.load(*[1])", "unpacked arguments cannot be checked"),
        ("tl.load(**{})", "unpacked arguments cannot be checked"),
        ("take = tl.load\ndef f(x):\n    take(x, masks=1)", "triton.language.load has no parameter 'masks'"),
        ("def f(x: tl.no_such_name):\n    pass", "triton.language.no_such_name is not documented"),
        ("def f(x, n=tl.no_such_name):\n    pass", "triton.language.no_such_name is not documented"),
        ("@triton.no_such_name\ndef f(x):\n    pass", "triton.no_such_name is not documented"),
    ],
)
def test_findings(line, finding):
    with pytest.raises(TLEContractError) as caught:
        check_contract(HEADER + line + "\n")
    assert finding in str(caught.value)
    number = int(re.search(r"line (\d+):", str(caught.value))[1])
    assert len(HEADER.splitlines()) < number <= len((HEADER + line).splitlines())


def test_every_finding_is_listed():
    with pytest.raises(TLEContractError) as caught:
        check_contract(HEADER + "tl.one\ntl.two\n")
    assert "line 7: triton.language.one" in str(caught.value) and "line 8: triton.language.two" in str(caught.value)


# ---------------------------------------------------------------- the table
def parameters_of(function) -> list[str]:
    """Names in order, with a mark on those that take the rest; hidden ones (_semantic) left out."""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [marks.get(p.kind, "") + name for name, p in inspect.signature(function).parameters.items() if not name.startswith("_")]


def parameters_of_row(row) -> list[str]:
    p = row.parameters
    rest = [f"*{p.vararg.arg}"] if p.vararg else []
    return [*row.positional, *rest, *row.keyword_only, *([f"**{p.kwarg.arg}"] if p.kwarg else [])]


def test_triton_rows_are_those_of_triton():
    triton = pytest.importorskip("triton")
    if not triton.__version__.startswith("3.6."):
        pytest.skip(f"the table describes Triton 3.6, {triton.__version__} is installed")
    import triton.language.extra.cuda

    wrong = {}
    for path, row in names().items():
        if row.since != "triton 3.6":
            continue
        value = triton
        for part in path.split(".")[1:]:
            value = getattr(value, part)
        if row.callable:
            # unwrap functions that are themselves JIT functions; leave out a trailing hint that the table does not list
            real = parameters_of(getattr(value, "fn", value))
            listed = parameters_of_row(row)
            if real[: len(listed)] != listed:
                wrong[path] = (real, listed)
    assert not wrong


def test_emulated_functions_have_the_documented_parameters():
    emulated = loader._modules({})
    compared = 0
    for path, row in names().items():
        module, _, name = path.rpartition(".")
        function = vars(emulated[module]).get(name)
        if not row.callable or row.since == NEWEST or function is None or isinstance(function, type) or name == "jit":
            continue  # the emulated jit ignores its options
        assert parameters_of(function) == parameters_of_row(row), path
        compared += 1
    assert compared > 40


def test_every_emulated_name_is_documented():
    for module in loader._modules({}).values():
        for name in vars(module):
            path = f"{module.__name__}.{name}"
            assert name.startswith("__") or path in names() or path in loader.modules(), path
