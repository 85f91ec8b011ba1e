"""Memory that the caller owns: a plan without a workspace, task records from elsewhere."""

import re

import pytest
import torch

from tle_attn.errors import InputError
from tle_attn.runtime import plan
from tle_attn.runtime.decode import idle_tasks, plan_decode, task_capacity
from tle_attn.spec.tasks import RECORD, RECORD_PAGES

#: a task and its first page ids
RECORD_WORDS = RECORD + RECORD_PAGES


@pytest.fixture
def make_bare(make_plan, executor):
    """A plan that owns no memory."""

    def make(name: str = "hy3/decode_bf16", **options):
        kernel = make_plan(name).kernel
        return plan_decode(kernel, batch=3, query_heads=8, kv_heads=1, device="cpu", target="cpu", executor=executor, owns_workspace=False, **options)

    return make


def tensors_for(plan, spare: int = 0) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(count + spare, dtype=getattr(torch, dtype.torch_name)) for name, (dtype, count) in plan.needs.items()}


class TestBarePlan:
    def test_holds_nothing_and_says_what_it_needs(self, make_bare, make_plan):
        bare, full = make_bare(), make_plan()
        assert bare.workspace == {} and bare.workspace_bytes == 0
        assert bare.needs == full.needs
        assert {name: (t.dtype, t.numel()) for name, t in full.workspace.items()} == {
            name: (getattr(torch, dtype.torch_name), count) for name, (dtype, count) in bare.needs.items()
        }

    def test_runs_on_the_callers_tensors(self, make_bare, executor, arguments):
        plan = make_bare()
        given = tensors_for(plan, spare=5)
        plan.run(**arguments, workspace=given)
        (planner, _, planned), (kernel, _, values) = executor.launches
        assert (planner, kernel) == ("plan_tasks", "decode")
        assert planned["tasks"] is given["tasks"] and all(values[name] is tensor for name, tensor in given.items())

    def test_needs_all_of_it_before_a_launch(self, make_bare, executor, arguments):
        plan = make_bare()
        given = tensors_for(plan)
        del given["partial_ml"], given["tasks"]
        with pytest.raises(InputError, match="workspace: partial_ml, tasks missing; this plan owns no workspace"):
            plan.run(**arguments, workspace=given)
        with pytest.raises(InputError, match="workspace: tasks missing"):
            plan.schedule(arguments["kv_lens"], block_ids=arguments["block_ids"])
        assert not executor.launches

    def test_fewer_slots(self, make_bare):
        assert make_bare().slots == 8
        assert (make_bare(slots=7).slots, make_bare(slots=7).tasks) == (7, 7)


class TestCallersTaskMap:
    def test_in_place_of_the_plans_own(self, make_plan, executor, arguments):
        plan, tasks = make_plan(), idle_tasks(8, "cpu", RECORD_WORDS)
        plan.schedule(arguments["kv_lens"], block_ids=arguments["block_ids"], workspace={"tasks": tasks})
        plan.run(**arguments, scheduled=True, workspace={"tasks": tasks})
        assert [values["tasks"] is tasks for _, _, values in executor.launches] == [True, True]
        assert executor.launches[1][2]["partial_o"] is plan.workspace["partial_o"]

    @pytest.mark.parametrize("name,tensor,message", [
        ("tasks", torch.zeros(319, dtype=torch.int32), "tasks: 319 elements where 320 contiguous ones are wanted"),
        ("tasks", torch.zeros(640, dtype=torch.int32)[::2], "tasks: 320 elements where 320 contiguous ones are wanted"),
        ("tasks", torch.zeros(320), "tasks: dtype float32 where int32 is wanted"),
        ("tasks", torch.zeros(8, 8, dtype=torch.int32), "tasks: shape (8, 8) where [elements] = (any) is wanted"),
        ("task", torch.zeros(64), "workspace: hy3/decode_bf16 has no 'task'; it needs partial_o, partial_ml, counters, tasks"),
    ])  # fmt: skip
    def test_refused(self, make_plan, executor, arguments, name, tensor, message):
        with pytest.raises((InputError, TypeError), match=re.escape(message)):
            make_plan().run(**arguments, workspace={name: tensor})
        assert not executor.launches

    def test_static_split_has_none(self, make_plan, arguments):
        with pytest.raises(InputError, match="has no 'tasks'; it needs partial_o, partial_ml, counters"):
            make_plan("hy3/decode_bf16_static").run(**arguments, workspace={"tasks": idle_tasks(8, "cpu")})

    def test_is_idle_before_it_is_planned(self, make_plan):
        assert torch.equal(make_plan().workspace["tasks"], idle_tasks(8, "cpu", RECORD_WORDS))
        assert idle_tasks(2, "cpu").tolist() == [0, 0, 0, 0, -2, 0, 0, 0] * 2


@pytest.mark.parametrize("slots,batch,kv_heads,count", [(8, 3, 1, 8), (8, 4, 1, 36), (8, 8, 1, 40), (8, 1, 2, 8), (8, 3, 2, 38), (8, 3, 16, 112), (264, 64, 8, 8 * (4 * 33 + 64)), (264, 0, 1, 264)])
def test_task_capacity_holds_for_every_smaller_batch(slots, batch, kv_heads, count):
    assert task_capacity(slots, batch, kv_heads) == count
    assert all(task_capacity(slots, b, kv_heads) <= count for b in range(batch))


def test_schedule_wants_dense_lengths(make_plan, executor):
    with pytest.raises(InputError, match="kv_lens: stride 2"):
        make_plan().schedule(torch.zeros(6, dtype=torch.int32)[::2])
    assert not executor.launches


def test_a_static_grid_beyond_what_cuda_launches_is_refused():
    with pytest.raises(InputError, match="65535"):
        plan("hy3/decode_bf16_static", batch=65_536, query_heads=8, kv_heads=1, target="cpu")
