"""Testing one block by itself: its function in a generated mini-kernel (inputs, block, outputs) against the block's semantic definition.

    check_block(OnlineSoftmax(), "first_reference", reference=lambda s: s.amax(0))

The mini-kernel is written from the block's typed ports: an input is loaded from global memory into the place its port names, an output is stored from there.
It is linked with the block's own text and what that calls, so the same test runs on the CPU emulation, on the emulated TLE and on a Hopper GPU.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from attrs import define, field, frozen

from tle_attn.codegen import entries_of
from tle_attn.codegen import source as src
from tle_attn.spec import Argument, Block, Constant, DType, Function, Kernel, Place, Port, Problem
from tle_attn.testing.mini_kernel import mini_kernel, run_kernel
from tle_attn.testing.paged import moved

TILE = 64
#: relative RMS error of an output by element type: fp32 arithmetic with approximate exp2, and half a unit in the last place of the others
TOLERANCE = {DType.F32: 1e-5, DType.BF16: 3e-3, DType.FP8: 4e-2, DType.I32: 0.0, DType.I64: 0.0, DType.U8: 0.0}


def chain_ports(chain: str, problem: Problem) -> Function:
    """Typed ports of a link of a chain of the decode mainloop."""
    n, d = problem.columns, problem.value_tile_dim
    s = Port("s", DType.F32, ("key", "query"), (TILE, n), layout="mma")
    key = Port("key", DType.I32, ("key", "query"), (TILE, 1))
    query, head = (Port(name, DType.I32, ("key", "query"), (1, n)) for name in ("query", "head"))
    distance = Port("distance", DType.F32, ("key", "query"), (TILE, n), layout="mma")
    number = Port("value", DType.F32, (), ())
    of_head = Port("of_head", DType.F32, ("key", "query"), (1, n))
    first, kv_len, kv_head, seq, first_new = (Port(name, DType.I32, (), ()) for name in ("first", "kv_len", "head", "seq", "first_new"))
    l, m, state = (Port(name, DType.F32, ("query",), (n,)) for name in ("l", "m", "value"))
    row_head = Port("head", DType.I32, ("query",), (n,))
    p, ratio = Port("p", DType.F32, ("key", "query"), (TILE, n), layout="mma"), Port("ratio", DType.F32, ("key",), (TILE,))
    product, top = Port("product", DType.F32, ("dim", "query"), (d, n), layout="mma"), Port("top", DType.F32, ("query",), (n,))
    logits = (s, key, query, head, distance, of_head, kv_len, seq, first_new), (s,)
    chains = {
        "score": logits, "mask": logits, "first_key": ((first, kv_len), (first,)), "denominator": ((l, m, row_head), (l,)), "log_sum": ((state, row_head), (state,)),
        "value_unit": ((number, kv_head), (number,)), "head_value": ((number, kv_head), (number,)), "tile_product": ((product, top), (product,)),
        "tile_weights": ((p, ratio, Port("limit", DType.F32, (), ())), (p,)),
    }  # fmt: skip
    return Function(chain, *chains[chain])


@frozen
class BlockRun:
    """What a block gave, and what its reference gives, by output."""

    outputs: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]

    def compare(self, rms: float | None = None, tolerances: Mapping[str, float] = {}) -> None:
        """AssertionError unless every output is the reference's within its tolerance; infinities and NaN stand where the reference has them."""
        for name, out in self.outputs.items():
            _compare(name, out, self.expected[name], tolerances[name] if rms is None else rms)


@define(kw_only=True, slots=False)
class BlockTest:
    """One function of a block in a mini-kernel.

    Attributes:
        block, function: what is tested.
        problem: what the block is made for.
        ports: typed ports of the function; default: what the block says in `provides`, or the ports of the chain that the function joins.
        inputs: values by parameter or argument name: tensors for ports (random if not given), numbers for parameters without a port, tensors and
            numbers for the kernel arguments that the block reads (`args.name`).  A `Constant` is passed as a compile-time constant.
        companions: blocks from which missing functions, constants and arguments are taken; default: the decode family's
            (`mini_kernel.prefill_companions(problem)` gives the prefill family's).
    """

    block: Block
    function: str
    problem: Problem = field(factory=Problem)
    ports: Function | None = None
    inputs: Mapping[str, Any] = field(factory=dict)
    companions: Iterable[Block] | None = None

    # ---- what the function takes and gives
    @cached_property
    def typed(self) -> Function:
        if self.ports is not None:
            return self.ports
        for chain, function in self.block.HOOKS.items():
            if function == self.function:
                return chain_ports(chain, self.problem)
        for function in self.block.provides(self.problem):
            if function.name == self.function and (function.inputs or function.outputs):
                return function
        raise ValueError(f"{self.block.label()} types no ports of {self.function}; give ports=, or type them in the block's provides")

    @cached_property
    def parameters(self) -> list[str]:
        """Parameters of the device function in order, `args` first if it has it."""
        texts = {t.name: t.tree() for t in src.texts_of(self.block, "")}
        micro = src.microkernel_file(type(self.block), "cpu")
        if micro:
            texts.update({n.name: n for n in ast.parse(micro.read_text()).body if isinstance(n, ast.FunctionDef)})
        if self.function not in texts:
            raise ValueError(f"{self.block.label()} has no device function {self.function}; it has {', '.join(sorted(texts))}")
        return [a.arg for a in texts[self.function].args.args]

    @cached_property
    def loaded(self) -> dict[str, Port]:
        """Ports that are filled before the call."""
        return {p.name: p for p in self.typed.inputs if p.name in self.parameters}

    @cached_property
    def returned(self) -> list[Port]:
        return [p for p in self.typed.outputs if p.place is Place.REGISTER]

    @cached_property
    def written(self) -> list[Port]:
        """Shared tiles that the function writes."""
        return [p for p in self.typed.outputs if p.place is Place.SHARED]

    @cached_property
    def constants(self) -> dict[str, Constant]:
        return {f"INPUT_{name.upper()}": value for name, value in self.inputs.items() if isinstance(value, Constant)}

    @cached_property
    def tiles(self) -> list[Port]:
        """Accumulator tiles among the ports, from which vectors take their layout, and a score tile."""
        both = [*self.typed.inputs, *self.typed.outputs, Port("scores", DType.F32, ("key", "query"), (TILE, self.problem.columns), layout="mma")]
        return [p for p in both if p.place is Place.REGISTER and len(p.shape) == 2 and 1 not in p.shape]

    # ---- the mini-kernel
    @cached_property
    def kernel(self) -> Kernel:
        """The mini-kernel; `tle_attn.generate` shows it, `runtime.executors.compile_kernel(kernel, "test")` compiles it without a GPU."""
        arguments = [Argument(f"in_{p.name}", _pointer(p), str(p)) for p in self.loaded.values()]
        arguments += [Argument(f"out_{p.name}", _pointer(p, out=True), str(p)) for p in (*self.returned, *self.written)]
        for name in self._plain_parameters:
            if name not in self.inputs:
                raise ValueError(f"{self.function} takes {name}, which no port types: give it in inputs")
            if not isinstance(self.inputs[name], Constant):
                arguments.append(Argument(f"in_{name}", "f32" if isinstance(self.inputs[name], float) else "i32", "a number"))
        name = f"block/{self.block.label().replace('/', '_')}_{self.function}"
        return mini_kernel(
            self.text(), self.block, problem=self.problem, arguments=arguments, constants=self.constants, companions=self.companions, name=name,
        )  # fmt: skip

    @property
    def _plain_parameters(self) -> list[str]:
        typed = {p.name for p in (*self.loaded.values(), *self.written)}
        return [name for name in self.parameters if name != "args" and name not in typed]

    def text(self) -> str:
        """The mini-kernel's own text."""
        lines = [f'"""{self.function} of {self.block.label()}."""']
        places = {p.name: p for p in (*self.loaded.values(), *self.written)}
        for port in places.values():
            lines += self._fill(port, port.name in self.loaded)
        if any(p.place is Place.SHARED for p in places.values()):
            lines += ["fence_async()", "role_sync()"]
        call = f"{self.function}({', '.join(self._argument(name) for name in self.parameters)})"
        results = [f"result_{i}" for i in range(len(self.returned))]
        lines.append(f"{', '.join(results)} = {call}" if results else call)
        for name, port in zip(results, self.returned):
            lines += self._keep(port, name)
        if self.written:
            lines.append("role_sync()")
        for port in self.written:
            lines += self._read_back(port)
        return "@jit\ndef test(args):\n" + "\n".join("    " + line for line in lines)

    def _argument(self, name: str) -> str:
        if name == "args" or name in {p.name for p in (*self.loaded.values(), *self.written)}:
            return name
        return f"INPUT_{name.upper()}" if isinstance(self.inputs.get(name), Constant) else f"args.in_{name}"

    def _fill(self, port: Port, load: bool) -> list[str]:
        """Lines that make the input `port` and, with `load`, fill it from global memory."""
        name, pointer, dims = port.name, f"args.in_{port.name}", port.shape
        if port.place is Place.REGISTER:
            if not dims:
                return [f"{name} = load({pointer})"]
            before, index, after = self._register_index(port)
            return [*before, f"{name} = load({pointer} + {index}){after}"]
        if port.layout == "plain" and len(dims) == 1:
            return [f"{name} = alloc_plain([{dims[0]}], {port.dtype.text})"] + ([f"smem_store({name}, load({pointer} + vec_index({dims[0]})))"] if load else [])
        make = "alloc_plain" if port.layout == "plain" else "alloc"
        lines = [f"{name} = {make}([{dims[0]}, {dims[1]}], {port.dtype.text})"]
        if load:
            lines.append(f"{name}_row, {name}_col = tile_index({dims[0]}, {dims[1]}, {16 // port.dtype.nbytes})")
            lines.append(f"smem_store({name}, load({pointer} + ({name}_row * {dims[1]})[:, None] + {name}_col[None, :]))")
        return lines

    def _register_index(self, port: Port) -> tuple[list[str], str, str]:
        """(lines, offsets of the port's elements in a row-major array, what turns the loaded vector into the port's shape)."""
        name, dims = port.name, port.shape
        if len(dims) == 2 and 1 not in dims:
            before = [f"{name}_tile = {self._tile(port)}"]
            return before, f"(rows({name}_tile) * {dims[1]})[:, None] + cols({name}_tile)[None, :]", ""
        axis = port.axes[0 if dims[-1] == 1 else -1] if len(dims) == 2 else port.axes[0]
        like = next((t for t in self.tiles if axis in t.axes), None)
        if like is None:
            return [], f"vec_index({dims[0]})", ""
        side = "rows" if like.axes[0] == axis else "cols"
        after = "" if len(dims) == 1 else "[:, None]" if dims[1] == 1 else "[None, :]"
        return [f"{name}_tile = {self._tile(like)}"], f"{side}({name}_tile)", after

    def _tile(self, port: Port) -> str:
        m, n = port.shape
        return f"tile_zeros({m}, {n}, 4)" if port.layout == "any" else f"mma_zeros({m}, {n}, {self.problem.dtype.text})"

    def _keep(self, port: Port, value: str) -> list[str]:
        """Lines that store a returned value."""
        pointer = f"args.out_{port.name}"
        if not port.shape:
            return [f"store({pointer}, {value})"]
        lines = [f"{value} = wgmma_wait(0, {value})"] if port.layout == "mma" else []
        if len(port.shape) == 2:
            return [*lines, f"store({pointer} + (rows({value}) * {port.shape[1]})[:, None] + cols({value})[None, :], {_wide(value, port)})"]
        before, index, _ = self._register_index(port)
        return [*lines, *before, f"store({pointer} + {index}, {_wide(value, port)})"]

    @staticmethod
    def _read_back(port: Port) -> list[str]:
        name, pointer = f"{port.name}_back", f"args.out_{port.name}"
        if len(port.shape) == 1:
            tile = f"{name}_tile"
            return [f"{tile} = tile_zeros({port.shape[0]}, 32, 4)", f"{name} = smem_load_rows({port.name}, {tile})", f"store({pointer} + rows({tile}), {name})"]
        index = f"(rows({name}) * {port.shape[1]})[:, None] + cols({name})[None, :]"
        return [f"{name} = smem_load({port.name})", f"store({pointer} + {index}, {_wide(name, port)})"]

    # ---- running
    def values(self, seed: int) -> dict[str, Any]:
        """Inputs by name: what was given, and random tensors for the other ports."""
        generator = torch.Generator().manual_seed(seed)
        found = {name: value for name, value in self.inputs.items() if not isinstance(value, Constant)}
        for port in self.loaded.values():
            dtype = getattr(torch, port.dtype.torch_name)
            if port.name in found:
                found[port.name] = torch.as_tensor(found[port.name]).to(dtype).expand(port.shape).contiguous()
            elif port.dtype in (DType.I32, DType.I64, DType.U8):
                found[port.name] = torch.randint(0, 2 * TILE, port.shape, generator=generator).to(dtype)
            else:
                found[port.name] = torch.randn(port.shape, generator=generator).to(dtype)
        return found

    def run(self, *, target: str = "cpu", seed: int = 0, device: Any = None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Run the mini-kernel; (outputs by port name, inputs by name).  Outputs start poisoned."""
        device = torch.device(device or ("cpu" if target in ("cpu", "tle-emulated") else "cuda"))
        inputs = {name: moved(value, device) if isinstance(value, torch.Tensor) else value for name, value in self.values(seed).items()}
        outputs = {p.name: _poison(p, device) for p in (*self.returned, *self.written)}
        own = {*self.loaded, *self._plain_parameters}
        taken = {a.name for a in entries_of(self.kernel)[0].arguments}  # a parameter that the function does not read is not passed
        values = {name: value for name, value in inputs.items() if name not in own}
        values |= {f"in_{name}": inputs[name] for name in own if f"in_{name}" in taken}
        values |= {f"out_{name}": tensor for name, tensor in outputs.items()}
        run_kernel(self.kernel, values, target=target, seed=seed, device=device)
        return {name: tensor.cpu() for name, tensor in outputs.items()}, {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}

    def expected(self, inputs: Mapping[str, Any], reference: Callable | None = None) -> dict[str, torch.Tensor]:
        """What the reference gives for these inputs, by output."""
        reference = reference or getattr(self.block, "reference", None)
        if reference is None:
            raise ValueError(f"{self.block.label()} has no reference; give reference=")
        given = {"problem": self.problem, **inputs, **{name: c.value for name, c in self.inputs.items() if isinstance(c, Constant)}}
        results = reference(**{name: given[name] for name in inspect.signature(reference).parameters})
        results = results if isinstance(results, tuple) else (results,)
        names = [p.name for p in self.typed.outputs]
        if len(results) != len(names):
            raise ValueError(f"the reference of {self.function} gives {len(results)} results for the outputs {', '.join(names)}")
        return dict(zip(names, results))


def check_block(
    block: Block,
    function: str,
    *,
    problem: Problem | None = None,
    inputs: Mapping[str, Any] | None = None,
    ports: Function | None = None,
    reference: Callable | None = None,
    companions: Iterable[Block] | None = None,
    target: str = "cpu",
    seed: int = 0,
    rms: float | None = None,
) -> BlockRun:
    """Run one function of a block in a mini-kernel and compare it with the block's semantic definition.

    Args:
        block: the block, with its options.
        function: name of its device function.
        problem: head geometry (default: bf16, head_dim 128, 8 query heads per key/value head, pages of 64).
        inputs, ports, companions: see `BlockTest`.
        reference: takes inputs (and the `problem`) by name, returns the outputs in port order, best in float64 (default: the block's own `reference`).
        target: "cpu", "tle-emulated", or "gluon" on a Hopper GPU.
        seed: of random inputs and of the emulation's schedule.
        rms: relative RMS error allowed in every output (default: TOLERANCE by the port's element type).

    Raises:
        AssertionError: an output differs: where, and by how much.
        ValueError: the ports, inputs or reference do not describe the function.
    """
    test = BlockTest(block=block, function=function, problem=problem or Problem(), ports=ports, inputs=dict(inputs or {}), companions=companions)
    outputs, given = test.run(target=target, seed=seed)
    run = BlockRun(outputs, test.expected(given, reference))
    run.compare(rms, {p.name: TOLERANCE[p.dtype] for p in test.typed.outputs})
    return run


NARROW = (DType.BF16, DType.F16, DType.FP8)


def _pointer(port: Port, out: bool = False) -> str:
    """Inputs hold the port's type; outputs of narrow types are kept as fp32, which holds them exactly."""
    return "*f32" if out and port.dtype in NARROW else f"*{port.dtype.value}"


def _wide(value: str, port: Port) -> str:
    return f"{value}.to(F32)" if port.dtype in NARROW else value


def _poison(port: Port, device: torch.device) -> torch.Tensor:
    if port.dtype in (DType.I32, DType.I64):
        return torch.full(port.shape, -(2**31) + 1, dtype=getattr(torch, port.dtype.torch_name), device=device)
    return torch.full(port.shape, math.nan, dtype=torch.float32, device=device)


def _compare(name: str, out: torch.Tensor, ref: torch.Tensor, rms: float) -> None:
    if out.shape != ref.shape:
        raise AssertionError(f"{name} has shape {list(out.shape)}, the reference {list(ref.shape)}")
    out, ref = out.double(), ref.double()
    finite = torch.isfinite(ref)
    same = torch.where(finite, torch.isfinite(out), (out == ref) | (torch.isnan(out) & torch.isnan(ref)))
    if not same.all():
        at = tuple(torch.nonzero(~same)[0].tolist())
        others = f"{int((~same).sum())} of {out.numel()} elements are of another kind"
        raise AssertionError(f"{name}{list(at)} is {float(out[at])}, the reference {float(ref[at])}; {others}")
    error = torch.where(finite, out - ref, 0.0)
    size = torch.where(finite, ref, 0.0)
    relative = float(error.norm() / size.norm()) if error.any() else 0.0
    if not relative <= rms:
        at = tuple(torch.nonzero(error.abs() == error.abs().max())[0].tolist())
        worst = f"most at {list(at)}: {float(out[at])}, the reference {float(ref[at])}"
        raise AssertionError(f"{name}: relative RMS error {relative:.3g} (allowed {rms:.3g}); {worst}")
