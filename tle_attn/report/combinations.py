"""Which options go together: every feature of decode and of prefill with every other one, and every recipe on every emulated target.

`python -m tle_attn.report.combinations` runs them and rewrites docs/combinations.md.  A pair is composed, and, where it is not refused, run in emulation on a small
ragged problem and compared with the oracle.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from ..errors import SpecError, TargetUnavailable
from ..spec import Kernel

#: scores and masks, which decode and prefill share
SHARED: dict[str, dict[str, Any]] = {
    "soft cap": {"score": [{"block": "soft_cap", "cap": 5.0}]},
    "ALiBi": {"score": [{"block": "alibi"}]},
    "sink": {"score": [{"block": "sink"}]},
    "score expression": {"score": [{"block": "expression", "value": "s - 0.5 * log(1.0 + abs(query - key))"}]},
    "sliding window": {"mask": [{"block": "sliding_window", "window": 70}]},
    "mask expression": {"mask": [{"block": "expression", "value": "key < 4 or query - key < 40"}]},
}
#: what a pair changes against the plain recipe of its phase; lists of blocks of two features are joined
FEATURES: dict[str, dict[str, dict[str, Any]]] = {
    "decode": {
        "fp8": {"extends": "hy3/decode_fp8"},
        "fp8, K scales per token": {"extends": "hy3/decode_fp8_per_token"},
        "fp8, K and V scales per token": {"extends": "variants/decode_fp8_kv_per_token"},
        "head_dim 64": {"problem.head_dim": 64},
        "head_dim 96": {"problem.head_dim": 96},
        "head_dim 192, values 128": {"problem.head_dim": 192, "problem.value_dim": 128, "mainloop.ctas_per_sm": 1},
        "head_dim 256": {"problem.head_dim": 256, "mainloop.ctas_per_sm": 1},
        "pages of 16": {"problem.page": 16},
        "no pages": {"loader.block": "contiguous_tma"},
        "2 query tokens": {"problem.query_tokens": 2},
        **SHARED,
        "tree": {"mask": [{"block": "tree"}]},
        "selected tiles": {"mask": [{"block": "selected_tiles"}]},
        "sigmoid": {"softmax.block": "sigmoid"},
        "exact maximum": {"softmax.maximum": "exact"},
        "static split": {"schedule.block": "static_split"},
        "fp32 output, LSE": {"epilogue.dtype": "f32", "epilogue.lse": "e"},
    },
    "prefill": {
        "fp8": {"extends": "hy3/prefill_fp8"},
        "fp8, sums in fp32": {"extends": "variants/prefill_fp8_fp32_sums"},
        "fp8, K scales per token": {"extends": "hy3/prefill_fp8_per_token"},
        "fp8, K and V scales per token": {"extends": "variants/prefill_fp8_kv_per_token"},
        "head_dim 64": {"problem.head_dim": 64},
        "head_dim 96": {"problem.head_dim": 96},
        "head_dim 192, values 128": {"problem.head_dim": 192, "problem.value_dim": 128},
        "head_dim 256": {"problem.head_dim": 256},
        "pages of 16": {"problem.page": 16},
        "no pages": {"loader.block": "contiguous_tiles"},
        "block mask": {"tiles.block": "block_mask"},
        "one consumer": {"mainloop.consumers": 1},
        **SHARED,
        "every key": {"mask": [{"block": "length"}]},
        "sigmoid": {"softmax.block": "row_sigmoid"},
        "fp32 output, LSE": {"epilogue.dtype": "f32", "epilogue.lse": "e"},
    },
}
#: masks that stand in place of the causal one
ENDING = ("tree", "every key")
#: of the small problem: no key, one, a part of a tile, and a sequence of several tiles
LENGTHS = (1, 0, 70, 200)
WRITTEN = Path(__file__).resolve().parents[2] / "docs" / "combinations.md"


@frozen
class Cell:
    """What came out: "ok", "-" (refused, with the reason), or what is wrong."""

    text: str
    reason: str = ""


def compose(phase: str, *features: str) -> Kernel:
    """The kernel of a phase with these features; SpecError where they do not go together."""
    from ..recipe import load

    options: dict[str, Any] = {"mask": [{"block": "causal"}], "score": []}
    for name in features:
        for key, value in FEATURES[phase][name].items():
            if isinstance(value, list):
                options[key] = options[key] + value
            elif options.get(key, value) != value:
                raise SpecError(f"{key} cannot be {options[key]} and {value}", key=key)
            else:
                options[key] = value
    if set(ENDING) & set(features):
        options["mask"] = [mask for mask in options["mask"] if mask["block"] != "causal"]
    recipe = load(options.pop("extends", f"hy3/{phase}_bf16"))
    for key in ("mask", "score"):
        recipe.tables[key] = options.pop(key)
    return recipe.set(options).kernel()


def outcome(kernel: Kernel, target: str = "cpu") -> Cell:
    """The kernel in emulation on the small problem."""
    from ..random_problems import prefill_problem_for, problem_for, states_problem_for
    from ..verify import run_one, tolerance

    case: Any
    if kernel.mainloop.PHASE == "merge":
        case = states_problem_for(kernel, 7, 2, 3)
    elif kernel.mainloop.PHASE == "prefill":
        case = prefill_problem_for(kernel, [(n, n) for n in LENGTHS])
    else:
        case = problem_for(kernel, LENGTHS)
    try:
        _, failure = run_one(kernel, target, case, tolerance(kernel)[0], seed=0)
    except TargetUnavailable as error:
        return Cell("-", str(error))
    return Cell("ok") if failure is None else Cell("WRONG", failure)


def pair(phase: str, a: str, b: str, run: bool = True) -> Cell:
    """The cell of two features of a phase; composed only, unless `run`."""
    try:
        kernel = compose(phase, a, b)
    except SpecError as error:
        return Cell("-", f"{error.key or 'recipe'}: {error.message}")
    return outcome(kernel) if run else Cell("ok")


def pairs() -> Iterator[tuple[str, str, str]]:
    """(phase, feature, feature)."""
    for phase, features in FEATURES.items():
        yield from ((phase, a, b) for a, b in itertools.combinations(features, 2))


def sampled(number: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Some of the pairs, always the same ones."""
    return random.Random(seed).sample(list(pairs()), number)


def render(cells: dict[tuple[str, str, str], Cell], recipes: dict[str, tuple[str, dict[str, Cell]]]) -> str:
    """The page; `recipes`: {name: (phase, {target: cell})}."""
    lines = ["# Combinations", "", "Generated by `python -m tle_attn.report.combinations`, which runs every cell in emulation on a small ragged problem and compares it with the float64 oracle.", ""]
    for phase, features in FEATURES.items():
        names = list(features)
        lines += [f"## Pairs of {phase} options", "", "`ok`: composed, run and right. A number: refused, for the reason below.", ""]
        reasons = list(dict.fromkeys(c.reason for (where, *_), c in cells.items() if where == phase and c.text == "-"))
        lines += ["| | " + " | ".join(map(str, range(1, len(names)))) + " |", "|---" * len(names) + "|"]
        for i, a in enumerate(names[1:], 1):
            row = [cells[phase, b, a] for b in names[:i]]
            shown = [str(reasons.index(c.reason) + 1) if c.text == "-" else c.text for c in row]
            lines.append(f"| {i + 1} {a} | " + " | ".join([*shown, *[""] * (len(names) - 1 - i)]) + " |")
        lines += ["", f"Column 1 is {names[0]}; the others are numbered as the rows are.", ""]
        lines += [*(f"{n}. {reason.replace('|', chr(92) + '|')}" for n, reason in enumerate(reasons, 1)), ""]
    lines += ["## Recipes", "", "`-`: the target has no way to express it (docs/targets.md).", "", "| recipe | phase | cpu | tle-emulated |", "|---|---|---|---|"]
    lines += [f"| {name} | {phase} | {found['cpu'].text} | {found['tle-emulated'].text} |" for name, (phase, found) in recipes.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run everything and rewrite the page of a source checkout."""
    from ..recipe import list_recipes, load
    from ..verify import EMULATED

    cells = {names: pair(*names) for names in pairs()}
    recipes = {}
    for name in list_recipes():
        kernel = load(name).kernel()
        recipes[name] = (kernel.mainloop.PHASE, {target: outcome(kernel, target) for target in EMULATED})
    wrong = [f"{where}: {cell.reason}" for where, cell in cells.items() if cell.text == "WRONG"]
    wrong += [f"{name} {target}: {cell.reason}" for name, (_, found) in recipes.items() for target, cell in found.items() if cell.text == "WRONG"]
    print("\n".join(wrong))
    WRITTEN.write_text(render(cells, recipes))


if __name__ == "__main__":
    main()
