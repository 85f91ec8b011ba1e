"""Targets that cannot run here say so in one line, and nothing falls back; compiling needs no GPU."""

import pytest
import torch

import tle_attn
from tle_attn.dialect.flagtree import missing
from tle_attn.errors import InputError, TargetUnavailable
from tle_attn.runtime import executors
from tle_attn.runtime.executors import build_signature, import_generated, make_executor, module_file
from tle_attn.spec import Argument, BoxDescriptor, DType

KERNEL = tle_attn.load("hy3/decode_bf16").kernel()
GEOMETRY = {"batch": 2, "query_heads": 8, "kv_heads": 1}


def refuses(action, *parts: str) -> None:
    with pytest.raises(TargetUnavailable) as caught:
        action()
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_unknown_target():
    with pytest.raises(InputError, match="no target is called 'cuda'; there are gluon, tle, cpu, tle-emulated"):
        tle_attn.plan(KERNEL, **GEOMETRY, target="cuda")


@pytest.mark.parametrize("target", ["cpu", "tle-emulated"])
def test_emulations_run_on_the_cpu(target):
    refuses(lambda: make_executor(KERNEL, target, torch.device("cuda", 0)), f"target {target} runs on the CPU, not on cuda:0")


def test_gluon_on_another_device():
    refuses(
        lambda: tle_attn.plan(KERNEL, **GEOMETRY, device="cpu"), "target gluon runs on a CUDA device, not on cpu", "target cpu emulates the kernel anywhere"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gluon_without_a_gpu():
    refuses(lambda: tle_attn.plan(KERNEL, **GEOMETRY), "target gluon needs an NVIDIA Hopper GPU (compute capability 9.0), and there is none here")


def test_gluon_on_an_older_gpu(monkeypatch):
    monkeypatch.setattr("tle_attn.build.has_hopper", lambda: False)
    refuses(lambda: make_executor(KERNEL, "gluon", torch.device("cuda", 0)), "needs an NVIDIA Hopper GPU")


@pytest.mark.skipif(not missing(), reason="FlagTree is installed")
def test_tle_without_flagtree():
    refuses(
        lambda: tle_attn.plan(KERNEL, **GEOMETRY, target="tle"), "the tle target cannot run here", "install FlagTree", "the gluon target runs on stock Triton"
    )


def test_nothing_is_generated_for_a_target_that_cannot_run(monkeypatch):
    monkeypatch.setattr(executors, "generate", lambda *_: pytest.fail("generated"))
    refuses(lambda: make_executor(KERNEL, "gluon", torch.device("cpu")))


def test_signature_of_a_kernel():
    box = BoxDescriptor(DType.FP8, (1, 1, 64, 128))
    signature = build_signature((
        Argument("p", "*bf16", ""), Argument("q", "*fp8", ""), Argument("n", "i32", ""), Argument("stride", "i64", "", divisible=16), Argument("scale", "f32", ""),
        Argument("desc", box, ""),
    ))  # fmt: skip
    descriptor = signature.pop("desc")
    assert signature == {"p": "*bf16", "q": "*fp8e4nv", "n": "i32", "stride": "i64:16", "scale": "fp32"}
    assert (descriptor.dtype, tuple(descriptor.block_shape)) == ("fp8", (1, 1, 64, 128))


def test_modules_are_files_named_by_their_text():
    generated = tle_attn.generate(KERNEL, "cpu")
    file = module_file(generated)
    assert file.name == f"{generated.module_name}.py" and file.read_text() == generated.text
    assert module_file(generated) == file and import_generated(file) is import_generated(file)
