"""The compile hook: shared-memory addresses, and clusters of CTAs compiled one program per CTA."""

import os
import re
import tempfile

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin

# ---- the compile hook: shared-memory addresses, and clusters of CTAs compiled one program per CTA
# Assembly that needs the hook starts with this word, which ptxas refuses and only the hook removes.
_HOOK = "tle_attn_compile_hook_3"
_ADDRESS_WIDTH = 64 if triton.__version__.startswith("3.6.") else 32  # of the compiler's operation that gives the address of a buffer
_ADDRESS = re.compile(
    r"(?P<result>%[\w#]+) = ttg\.local_load (?P<buffer>%[\w#]+) \{[^}]*" + _HOOK
    + r"[^}]*\} : (?P<buffer_type>!ttg\.memdesc<.*?>) -> (?P<type>tensor<.*?>)(?: loc\(.*\))?$",
    re.MULTILINE)
_JUMP = re.compile(r"(?P<label>\$L_brx_\d+): \.branchtargets(?P<targets>[^;]*);\s*brx\.idx\s+(?P<index>%r\d+), (?P=label);\n")
_ALLOCATION = re.compile(r"^    (?P<buffer>%[\w#]+) = ttg\.local_alloc .*?: \(\) -> (?P<type>!ttg\.memdesc<.*?>)(?: loc\(.*\))?$", re.MULTILINE)


def _hook_ttgir(module):
    """Turn the marked loads into addresses, and return (module, number of cluster barriers).

    The compiler does not see accesses through an address, of this CTA or a peer, so every buffer stays allocated to the kernel's end.
    """
    text = str(module)
    if _HOOK not in text:
        return module, 0
    lines = text.splitlines()
    barriers = [i for i, line in enumerate(lines) if f"{_HOOK} cluster_barrier" in line]
    roles = [i for i, line in enumerate(lines) if "ttg.warp_specialize(" in line]
    if roles and any(i > roles[0] or not re.match(r"    %\w", lines[i]) for i in barriers):
        raise ValueError("cluster_barrier() in a warp-specialised kernel: allowed only before warp_specialize() and outside of branches and loops, because the "
                         "warps of all roles have to take part; between roles use cluster_push and cluster_push_wait")
    if roles and len(barriers) > 1:
        raise ValueError(f"{len(barriers)} calls of cluster_barrier() in a warp-specialised kernel: allowed is one, because the warps of the other roles arrive and do not wait")

    def address(load):
        name = load["result"] + "_address"
        return (f"{name} = tti.experimental_memdesc_to_i{_ADDRESS_WIDTH} {load['buffer']} : {load['buffer_type']}\n"
                f"    {load['result']} = tt.splat {name} : i{_ADDRESS_WIDTH} -> {load['type']}")

    if any(_ADDRESS.finditer(text)):
        keep = "".join(f"    ttg.local_dealloc {a['buffer']} : {a['type']}\n" for a in _ALLOCATION.finditer(text))
        text = _ADDRESS.sub(address, text)
        end = text.rindex("    tt.return")  # an earlier return comes before the allocations
        text = text[:end] + keep + text[end:]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.ttgir")
        with open(path, "w") as file:
            file.write(text)
        rewritten = ir.parse_mlir_module(path, module.context)
    rewritten.context = module.context
    return rewritten, len(barriers)


def _branches(jump):
    """Compare and branch in place of a jump table, by which roles find their code: its entry is a load from constant memory that nobody has asked for before."""
    targets = re.findall(r"\$\w+", jump["targets"])
    return "".join(f"{{ .reg .pred here; setp.eq.u32 here, {jump['index']}, {i}; @here bra {target}; }}\n" for i, target in enumerate(targets))


def _hook_ptx(text, metadata, barriers, role_0_warps):
    """Remove the marker words; set the cluster size; let the warps of the other roles take part in a cluster barrier before warp_specialize().

    They arrive and do not wait: a wait would keep them from giving up registers, for which role 0 waits before it comes to the barrier.
    """
    cluster = re.search(_HOOK + r" cluster_dims (\d+);", text)
    if cluster:
        metadata["num_ctas"] = int(cluster[1])
        text = re.sub(r"(\.reqntid [^\n]*\n)", rf"\1.explicitcluster\n.reqnctapercluster {cluster[1]}, 1, 1\n", text, count=1)
    if barriers and metadata["num_warps"] > role_0_warps:
        start = text.index("\n", text.index("// %bb.0:", text.index(".entry"))) + 1
        others = f"{{ .reg .pred other; .reg .b32 thread; mov.u32 thread, %tid.x; setp.ge.u32 other, thread, {32 * role_0_warps}; @other barrier.cluster.arrive.relaxed; }}\n"
        text = text[:start] + others + text[start:]
    if _HOOK in text:
        text = _JUMP.sub(_branches, text)
    descriptors = re.findall(r"\.param \.align 64 \.b8 (\w+)\[128\]", text)
    if descriptors and _HOOK in text:  # their way from memory is as long as that of the first data
        start = text.index("\n", text.index("// %bb.0:", text.index(".entry"))) + 1
        fetches = "".join(f"mov.b64 at, {d}; cvta.param.u64 at, at; @first prefetch.tensormap [at]; " for d in descriptors)
        fetch = f"{{ .reg .pred first; .reg .b64 at; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; {fetches}}}\n"
        text = text[:start] + fetch + text[start:]
    registers = ""  # of the whole function
    if f"{_HOOK} flag;" in text:  # assembly blocks hand a per-thread answer on
        registers += "\n\t.reg .b32 tle_attn_flag;"
    if f"{_HOOK} policy;" in text:
        registers += "\n\t.reg .b64 tle_attn_policy;\n\t.reg .pred tle_attn_evict;"
        # a load with evict_normal is not the same as one without a hint: it kept 48 MB out of an H200's 60 MB L2
        load = r"@(%p\d+) (cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\S*mbarrier::complete_tx::bytes)( [^;]*);"
        both = r"{ .reg .pred hint, none; and.pred hint, \1, tle_attn_evict; xor.pred none, \1, hint; @hint \2.L2::cache_hint\3, tle_attn_policy; @none \2\3; }"
        text = re.sub(load, both, text)
    if registers:
        start = text.index("{", text.index(".entry")) + 1
        text = text[:start] + registers + text[start:]
    return re.sub(_HOOK + r" \w+(?: \d+)?;", "", text)


def _install_compile_hook():
    """Run the two rewrites in every compile of this process, behind a hook that is there already; they leave other kernels as they are."""
    earlier = knobs.runtime.add_stages_inspection_hook
    if getattr(earlier, "name", None) == _HOOK:
        return _HOOK

    def hook(*arguments):
        if not arguments:  # Triton 3.7 and later: the hook's part of the cache key
            return tuple(part + _HOOK for part in (earlier() if earlier else ("", "")))
        _, stages, options = arguments[:3]
        if earlier:
            earlier(*arguments)
        if "ptx" in stages:
            make_ttgir, make_ptx, barriers = stages["ttgir"], stages["ptx"], []

            def ttgir(module, metadata):
                module, count = _hook_ttgir(make_ttgir(module, metadata))
                barriers.append(count)
                return module

            stages["ttgir"] = ttgir
            stages["ptx"] = lambda module, metadata: _hook_ptx(make_ptx(module, metadata), metadata, sum(barriers), options.num_warps)
        return None

    hook.name, hook.tle_attn_earlier = _HOOK, earlier
    knobs.runtime.add_stages_inspection_hook = hook
    return _HOOK


_INSTALLED_HOOK = _install_compile_hook()


@builtin
def _marked_load(mem, layout, _semantic=None):
    """A one-element load of `mem`, marked for the compile hook."""
    layout, width = gl._unwrap_if_constexpr(layout), _ADDRESS_WIDTH
    rank = mem.layout.rank if isinstance(mem.layout, gl.NVMMASharedLayout) else len(mem.layout.order)
    if len(mem.shape) > rank:  # of slots: the first one's
        mem = _semantic.memdesc_index(mem, 0)
    bits = mem.dtype.primitive_bitwidth * mem.numel
    if bits % 128 and mem.dtype != gl.int64:
        raise ValueError(f"{mem.dtype}{mem.shape}: a buffer or slot that compact or another CTA accesses needs a multiple of 16 bytes, as its address is one")
    count = max(1, bits // width)
    kind = gl.shared_memory_descriptor_type(gl.int64 if width == 64 else gl.int32, [count], gl.SwizzledSharedLayout(1, 1, 1, [0]), [count])
    flat = gl.shared_memory_descriptor(_semantic.builder.create_memdesc_reinterpret(kind.to_ir(_semantic.builder), mem.handle), **kind.__dict__)
    value = _semantic.shared_load(_semantic.memdesc_slice(flat, 0, 1, 0) if count > 1 else flat, layout)
    value.handle.set_attr(_INSTALLED_HOOK, _semantic.builder.get_int32_attr(1))
    return value


@gluon.constexpr_function
def _hooked(call, assembly):
    return f"{_INSTALLED_HOOK} {call}; {assembly}"


@gluon.jit
def _address(mem):
    """Shared-memory address of `mem` in this CTA, bytes."""
    marked = _marked_load(mem, _vector_layout(1, gl.num_warps()))
    return gl.max(gl.inline_asm_elementwise(_hooked("address", "mov.b32 $0, $1;"), "=r,r", [marked.to(gl.int32)], dtype=gl.int32, is_pure=True, pack=1), 0)


@gluon.jit
def _barrier_address(barrier):
    return _address(barrier.array) + 8 * barrier.index
