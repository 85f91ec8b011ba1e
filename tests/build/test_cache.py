"""The compile cache under many processes, damage and folders that cannot be written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tle_attn
from tle_attn.build import Descriptor, cache, compile_count, compile_module
from tle_attn.errors import CacheWarning

pytest.importorskip("triton")

REPOSITORY = Path(tle_attn.__file__).parent.parent
TEXT = '''"""One store."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def one(out):
    gl.store(out, 1)
'''
# Compiles in `count` processes at once; a line of output is one process's count of compilations and digest of the machine code.
PROCESSES = """
import hashlib, os, sys, time
import triton.experimental.gluon
from triton.runtime.cache import triton_key
from tle_attn.build import compile_count, compile_module

triton_key()  # the digest of the compiler: slow, and the same for all
start = time.time() + 0.5
children = []
for _ in range(int(sys.argv[2])):
    children.append(os.fork())
    if not children[-1]:
        time.sleep(start - time.time())
        kernel = compile_module(open(sys.argv[1]).read(), "one", {"out": "*i32"}, num_warps=1)
        os.write(1, f"{compile_count()} {hashlib.sha256(kernel.asm['cubin']).hexdigest()}\\n".encode())
        os._exit(0)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(text=TEXT, entry="one", signature=None, **options):
    return compile_module(text, entry, signature or {"out": "*i32"}, **{"num_warps": 1, **options})


def compilations(*args, **options):
    """Real compilations of one call."""
    before = compile_count()
    build(*args, **options)
    return compile_count() - before


def cubin(folder):
    return next(folder.glob("kernels/*/*/one.cubin"))


def in_processes(tmp_path, folder, count):
    """[(compilations, digest of the machine code)] of processes that compile at the same time."""
    (tmp_path / "one.py").write_text(TEXT)
    command = [sys.executable, "-W", "error::UserWarning", "-c", PROCESSES, str(tmp_path / "one.py"), str(count)]
    environment = {**os.environ, "TLE_ATTN_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [tuple(line.split()) for line in done.stdout.splitlines()]


def test_many_cold_processes_compile_once(tmp_path, folder):
    results = in_processes(tmp_path, folder, 16)
    assert sorted(count for count, _ in results) == ["0"] * 15 + ["1"]
    assert len({digest for _, digest in results}) == 1


def test_lock_of_a_killed_process_does_not_matter(tmp_path, folder):
    code = "import time, tle_attn.build.cache as c\nwith c.entry('key'):\n    print('held', flush=True)\n    time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    with cache.entry("key"):
        pass


def test_second_call_is_a_hit(folder):
    assert (compilations(), compilations()) == (1, 0)


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:100]), lambda p: p.unlink(),
                                    lambda p: p.write_bytes(p.read_bytes()[:-1] + b"x")], ids=["empty", "truncated", "missing", "changed"])
@pytest.mark.parametrize("name", ["one.cubin", "one.json", "__grp__one.json"])
def test_damaged_files_are_noticed_and_rebuilt(folder, damage, name):
    good = build().asm["cubin"]
    damage(next(folder.glob(f"kernels/*/*/{name}")))
    with pytest.warns(CacheWarning, match="damaged or incomplete: compiled again"):
        assert compilations() == 1
    assert build().asm["cubin"] == good


def test_interrupted_compile_is_noticed(folder):
    build()
    next(folder.glob("kernels/*/checksums.json")).unlink()
    with pytest.warns(CacheWarning, match="incomplete"):
        assert compilations() == 1


def test_damaged_module_file_is_rewritten(folder):
    path = build().path
    path.write_text("")
    assert build().path.read_text() == TEXT


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning, match="cannot be written or locked.*: this process compiles into"):
        kernel = build()
    assert kernel.facts.opcodes["STG"] == 1
    assert compilations() == 0, "the temporary folder serves the whole process"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser writes into read-only folders")
def test_read_only_folder(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(mode=0o500)
    monkeypatch.setenv("TLE_ATTN_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.warns(CacheWarning, match="cannot be written"):
        build()


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TLE_ATTN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "tle_attn"


def test_everything_that_changes_the_machine_code_changes_the_key(folder):
    two = TEXT.replace("def one(out)", "def one(out, N: gl.constexpr)").replace("out, 1", "out, N")
    variants = [
        build(), build(TEXT + "\n"), build(num_warps=2), build(maxnreg=64), build(launch_pdl=True), build(signature={"out": "*bf16"}),
        build(two, constants={"N": 1}), build(two, constants={"N": 2}), build(TEXT.replace("(out)", "(out)").replace("def one", "def uno"), entry="uno"),
    ]
    assert len({kernel._entry.path for kernel in variants}) == len(variants)
    with_box = TEXT.replace("gl.store(out, 1)", "gl.store(p, 1)").replace("(out)", "(out, p)")
    boxes = [build(with_box, signature={"out": Descriptor("bf16", shape), "p": "*i32"}) for shape in ((8, 64), (8, 32))]
    assert boxes[0]._entry.path != boxes[1]._entry.path


def test_key_is_the_same_in_every_process(folder, tmp_path):
    build()
    assert [count for count, _ in in_processes(tmp_path, folder, 1)] == ["0"]
    assert len(list(folder.glob("kernels/*"))) == 1


def test_alias_of_a_builtin_is_part_of_the_key(folder):
    """Triton's own key does not see it."""
    text = TEXT.replace("\n\n@gluon", "pick = gl.maximum\n\n\n@gluon").replace("out, 1", "out, pick(gl.load(out), 3)")
    first, second = build(text), build(text.replace("pick = gl.maximum", "pick = gl.minimum"))
    assert first.asm["cubin"] != second.asm["cubin"]


def test_facts_of_older_code_do_not_count(folder):
    facts = build().facts
    noted = next(folder.glob("kernels/*/facts.json"))
    values = json.loads(noted.read_text())
    values["facts"]["registers"] = 999
    noted.write_text(json.dumps(values))
    assert build().facts.registers == 999
    noted.write_text(json.dumps({**values, "measured_by": "older"}))
    assert build().facts == facts


def test_failed_compile_leaves_no_entry(folder):
    with pytest.raises(Exception, match="nothing"):
        build(TEXT.replace("out, 1", "out, nothing"))
    assert not list(folder.glob("kernels/*"))
