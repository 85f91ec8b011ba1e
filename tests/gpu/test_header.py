"""A generated module, launched with nothing but torch and Triton, as its docstring says."""

from tests.codegen.launch_by_header import decode_by_header
from tle_attn.testing import compare


def test_the_module_runs_as_its_header_says(tmp_path):
    out, problem = decode_by_header("gluon", "cuda", tmp_path)
    compare(out, problem.reference()[0], rms=4e-3, name_row=problem.name_row)
