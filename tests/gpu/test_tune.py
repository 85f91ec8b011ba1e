"""Tuning on the GPU: what comes out is at least as fast as what went in, right, and used where it is asked for."""

import pytest

import tle_attn
from benchmarks.watchdog import watch
from tests.gpu import kernels
from tle_attn.cli import OK, main
from tle_attn.recipe.tuned import read_tuned
from tle_attn.testing import compare, make_decode_problem


@pytest.fixture(autouse=True)
def no_hang(request, console):
    """In place of the shorter limit of the other GPU tests: every combination is compiled."""
    with watch(request.node.nodeid, 240.0, console):
        yield


def test_tune(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(f'extends = "{kernels.DYNAMIC}"\n')
    assert main(["tune", "mine.toml", "--only", "ring.stages", "--workload", "uniform_512", "--jobs", "2"]) == OK
    (file,) = (tmp_path / "tuned").rglob("*.toml")
    assert str(file.relative_to(tmp_path)) in capsys.readouterr().out
    (found,) = read_tuned(file)
    assert 0 < found.us["uniform_512"] <= found.us_before["uniform_512"]
    plan = tle_attn.plan("mine.toml", batch=3, query_heads=8, kv_heads=1, tuned=True)
    assert all(getattr(plan.kernel.mainloop.ring, key.split(".")[1]) == value for key, value in found.options.items())
    problem = make_decode_problem([64, 700, 5003], heads=(8, 1), device="cuda")
    out, _ = plan.run(problem.q, problem.k_cache, problem.v_cache, problem.block_ids, problem.kv_lens, out=problem.new_output())
    compare(out, problem.reference()[0], rms=4e-3)
