"""Small ragged problems of every Hy3 recipe against the oracle, for a sanitizer: `compute-sanitizer --tool memcheck python -m tests.gpu.sanitized [RECIPE ...]`."""

from __future__ import annotations

import sys

import tle_attn
from tle_attn.random_problems import problems
from tle_attn.verify import run_one, tolerance


def main() -> int:
    failed = 0
    for recipe in sys.argv[1:] or [r for r in tle_attn.list_recipes() if r.startswith("hy3/")]:
        kernel = tle_attn.load(recipe).kernel()
        for name, problem in problems(kernel, seed=7, emulated=True):
            error, failure = run_one(kernel, "gluon", problem, tolerance(kernel)[0])
            print(f"{recipe}, {name}: relative RMS error {error:.2e}{f', FAILED: {failure}' if failure else ''}", flush=True)
            failed += failure is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
