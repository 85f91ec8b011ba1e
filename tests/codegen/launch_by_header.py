"""Launch a generated module as its docstring says, with nothing of the runtime."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import torch

import tle_attn
from tle_attn.testing import DecodeProblem, make_decode_problem

RECIPE = "hy3/decode_bf16_static"


def decode_by_header(target: str, device: str, folder: Path) -> tuple[torch.Tensor, DecodeProblem]:
    """Output of the static decode kernel on a random problem, and the problem."""
    kernel = tle_attn.load(RECIPE).kernel()
    problem = make_decode_problem([1, 700, 0, 64], heads=(8, 1), device=device)
    generated = tle_attn.generate(kernel, target)
    file = folder / f"{generated.module_name}.py"
    file.write_text(generated.text)
    told = ast.get_docstring(ast.parse(generated.text))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    (listed,) = re.findall(r"^Kernel decode, grid \(splits, batch \* kv_heads\).*; arguments in order:\n((?:    .*\n)+)", told, re.MULTILINE)
    types = dict(re.findall(r"^    (\w+): (tensor descriptor [^-]*?|\S+) - ", listed, re.MULTILINE))
    (made_by,) = set(re.findall(r"^A tensor descriptor .* is\n    (.*)$", told, re.MULTILINE))
    (call,) = re.findall(r"^    (.*decode[\[,].*)$", told, re.MULTILINE)

    splits, batch, heads, dim, columns = kernel.mainloop.schedule.splits, 4, 8, 128, kernel.problem.columns
    out = problem.new_output()
    floats = {"partial_o": (splits * batch, columns, dim), "partial_ml": (splits * batch, 2, columns)}
    values: dict[str, Any] = {
        **{name: getattr(problem, name) for name in ("q", "block_ids", "kv_lens")}, **{name: torch.full(shape, torch.nan, device=device) for name, shape in floats.items()},
        "k_desc": problem.k_cache, "v_desc": problem.v_cache, "out": out, "counters": torch.zeros(batch, 2, dtype=torch.int32, device=device),
        "q_token_stride": problem.q.stride(0), "q_head_stride": problem.q.stride(1), "out_token_stride": heads * dim, "out_head_stride": dim,
        "block_ids_stride": problem.block_ids.stride(0), "scale_log2": dim**-0.5 * 1.4426950408889634, "new_tokens": 0, "batch": batch, "kv_heads": 1,
    }  # fmt: skip
    names = {**vars(module), "tle_attn": tle_attn, "grid": (splits, batch)}
    if target == "gluon":
        import triton.experimental.gluon.nvidia.hopper  # noqa: F401
    arguments = {}
    for name, kind in types.items():
        value = values[name]
        if kind.startswith("tensor descriptor"):
            view = value.permute(0, 2, 1, 3)  # (page, head, token, dim), as the header says
            value = eval(made_by, names, {"view": view})
        elif target == "cpu":
            value = (kind, value)
        arguments[name] = value
    eval(call, {**names, "arguments": arguments if target == "cpu" else list(arguments.values())})
    return out, problem
