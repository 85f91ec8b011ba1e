"""What an export passes to the driver, byte for byte against what Triton's own launcher passes, on a stand-in for libcuda."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tle_attn
from tle_attn.exports import read_export

pytest.importorskip("triton")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libcuda")
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", HERE / "stub_cuda.c"], check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


@pytest.mark.parametrize("recipe,entry", [
    ("hy3/decode_bf16", "decode"), ("hy3/decode_bf16", "plan_tasks"), ("hy3/decode_fp8_per_token", "decode"),
    ("variants/decode_bf16_detached", "decode"), ("variants/decode_bf16_detached", "merge_partials"),
])  # fmt: skip
def test_parameters_of_a_launch(recipe: str, entry: str, libcuda: Path, tmp_path: Path) -> None:
    axes = {key: values[:1] for key, values in tle_attn.load(recipe).axes.items()}
    tle_attn.export(recipe, tmp_path / "export", axes=axes)
    (module,) = read_export(tmp_path / "export").manifest.modules
    (exported,) = [e for e in module.entries if e.name == entry]
    sizes = [size for p in exported.parameters for size in p.sizes] + [8, 8]
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(libcuda), "TRITON_LIBCUDA_PATH": str(libcuda), "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "STUB_LOG": str(tmp_path / "log"), "STUB_SIZES": ",".join(map(str, sizes)), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }  # fmt: skip
    done = subprocess.run([sys.executable, HERE / "launches.py", tmp_path / "export", recipe, entry], env=environment, capture_output=True, text=True, cwd=HERE.parent.parent)
    if "Python.h" in done.stderr:
        pytest.skip("no headers of Python, which Triton's launcher needs")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    half = len(lines) // 2
    assert lines[0].startswith("launch 0x3 grid 7 5 1 block ") and lines[:half] == lines[half:]
    assert exported.launch_pdl == (recipe == "variants/decode_bf16_detached")
    assert half == 1 + exported.launch_pdl + len(sizes), "one line for the launch, one for its attribute and one for each parameter"
