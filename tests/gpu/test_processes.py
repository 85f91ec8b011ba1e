"""Several cold processes on one GPU: each kernel is compiled once, by one of them, and all are right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tle_attn
from benchmarks.watchdog import watch

PROCESSES = 4
SECONDS = 240.0  # they compile
CODE = """
import json
import tle_attn
from tle_attn.build import compile_count
from tle_attn.testing import compare, make_decode_problem

problem = make_decode_problem([5003, 0, 64, 129], device="cuda")
plan = tle_attn.plan("hy3/decode_bf16", batch=4, query_heads=8, kv_heads=1)
for _ in range(20):
    out, _ = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens)
    compare(out, problem.reference()[0], rms=4e-3)
print(json.dumps({"compiled": compile_count(), "kernels": len(plan.executor.compiled)}))
"""


@pytest.fixture(autouse=True)
def no_hang(request, console):
    """In place of the shorter limit of the other GPU tests."""
    with watch(request.node.nodeid, SECONDS + 30, console):
        yield


def test_cold_processes(tmp_path):
    root = str(Path(tle_attn.__file__).parent.parent)
    environment = {**os.environ, "TLE_ATTN_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    started = [subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    results = []
    for process in started:
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        results.append(json.loads(out.splitlines()[-1]))
    assert sum(r["compiled"] for r in results) == results[0]["kernels"], "a kernel was compiled twice, or not at all"
