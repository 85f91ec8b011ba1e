"""Compiling generated modules: what a compiled kernel tells, and how failures read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tle_attn
from tle_attn.build import BuildError, CompileError, Descriptor, compile_module, has_hopper, versions

pytest.importorskip("triton")

PRELUDE = '''"""A module as the generator writes it, for one small kernel."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
'''
ADD = PRELUDE + '''

@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def add(x, y, n, STEP: gl.constexpr):
    i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(y + i, plus(gl.load(x + i, mask=i < n), STEP))
'''
SIGNATURE = {"x": "*i32", "y": "*i32", "n": "i32"}


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path / "cache"))


def compile_add(text=ADD, signature=SIGNATURE, entry="add", **options):
    return compile_module(text, entry, signature, **{"num_warps": 4, "constants": {"STEP": 5}, **options})


def test_importing_build_imports_neither_triton_nor_torch():
    code = "import sys, tle_attn.build; sys.exit(any(m in sys.modules for m in ('triton', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(tle_attn.__file__).parent.parent).returncode == 0


def test_compiled_kernel():
    kernel = compile_add(signature=dict(reversed(SIGNATURE.items())))
    assert list(kernel.signature) == ["x", "y", "n"], "in the kernel's order"
    assert (kernel.num_warps, kernel.cluster, kernel.shared_bytes) == (4, 1, 0)
    facts = kernel.facts
    assert facts.opcodes["LDG"] == facts.opcodes["STG"] == 1
    assert facts.registers <= 32 and facts.loop_instructions == 0 and kernel.warnings == ()
    assert "add.s32" in kernel.asm["ptx"] and ", 5;" in kernel.asm["ptx"]


def test_register_bound_and_warps_are_options():
    assert ".maxnreg 40" in compile_add(maxnreg=40).asm["ptx"]
    assert ".reqntid 256" in compile_add(ADD.replace("[4], [0]", "[8], [0]"), num_warps=8).asm["ptx"]


def test_module_from_a_file(tmp_path):
    path = tmp_path / "generated.py"
    path.write_text(ADD)
    assert compile_add(path).asm["cubin"] == compile_add(str(path)).asm["cubin"] == compile_add().asm["cubin"]


def test_users_triton_settings_stay(monkeypatch):
    from triton import knobs

    before = (knobs.cache.dir, knobs.compilation.listener, knobs.runtime.add_stages_inspection_hook)
    compile_add()
    assert (knobs.cache.dir, knobs.compilation.listener, knobs.runtime.add_stages_inspection_hook) == before


@pytest.mark.parametrize(("change", "line_text", "reason"), [
    (("a + b", "a + c"), "return a + c", "c is not defined"),
    (("gl.load(x + i", "gl.load(i + i"), "gl.store(y + i, plus(gl.load(i + i", "Unsupported ptr type"),
    (("[32], [4]", "[32], [2]"), "i = gl.arange", "warps"),
])
def test_failure_names_kernel_line_and_reason(change, line_text, reason, capfd):
    text = ADD.replace(*change)
    with pytest.raises(CompileError) as caught:
        compile_add(text)
    error = caught.value
    assert error.entry == "add"
    assert line_text in text.splitlines()[error.line - 1]
    assert reason in error.reason
    message = str(error)
    assert f"{error.path}:{error.line}" in message and line_text in message and len(message.splitlines()) <= 6
    assert capfd.readouterr() == ("", "")


def test_call_chain_of_a_failure():
    with pytest.raises(CompileError, match=r"called from line \d+") as caught:
        compile_add(ADD.replace("a + b", "a + c"))
    called_from = int(str(caught.value).split("called from line ")[1].split()[0])
    assert "plus(" in ADD.splitlines()[called_from - 1]


def test_compiler_output_goes_to_a_file(capfd):
    """ptxas refuses assembly: the PTX dump is kept, not printed."""
    text = ADD.replace("return a + b", 'return gl.inline_asm_elementwise("nonsense $0;", "=r,r", [a], dtype=gl.int32, is_pure=False, pack=1)')
    with pytest.raises(CompileError, match="ptxas: ") as caught:
        compile_add(text)
    assert "nonsense" in caught.value.log.read_text()
    assert str(caught.value.log) in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_compiler_that_aborts_the_process_leaves_its_output(tmp_path):
    code = """
import os, sys, triton
from tle_attn.build import compile_module
def crash(*args, **options):
    os.write(2, b"assertion failed somewhere")
    os.abort()
triton.compile = crash
compile_module(open(sys.argv[1]).read(), "add", {"x": "*i32", "y": "*i32", "n": "i32"}, num_warps=4, constants={"STEP": 5})
"""
    (tmp_path / "add.py").write_text(ADD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tle_attn.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "add.py")], env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "Fatal Python error: Aborted" in done.stderr
    log, = (tmp_path / "cache" / "logs").glob("*.log")
    assert log.read_text() == "assertion failed somewhere"


def test_requests_that_do_not_fit():
    with pytest.raises(BuildError, match="has no kernel sub"):
        compile_add(entry="sub")
    with pytest.raises(BuildError, match="missing"):
        compile_add(constants={})
    with pytest.raises(BuildError, match="'x'.*|argument x"):
        compile_add(signature={**SIGNATURE, "x": "*double"})
    with pytest.raises(BuildError, match="takes 3 arguments"):
        compile_add().launch((1,), [1, 2])


def test_descriptor_argument():
    text = PRELUDE + '''

@gluon.jit
def first(desc, out):
    gl.store(out, desc.shape[0])
'''
    kernel = compile_module(text, "first", {"desc": Descriptor("bf16", (1, 64, 128)), "out": "*i32"}, num_warps=1)
    assert ".align 64 .b8" in kernel.asm["ptx"]


def test_toolchain():
    import triton

    found = versions()
    assert found["triton"] == triton.__version__ and found["ptxas"][:2] in ("12", "13") and "python" in found
    assert isinstance(has_hopper(), bool)
