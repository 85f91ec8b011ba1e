"""Task maps in the caller's tensor: planned without a host read, used many times, right for the lengths of the last assignment."""

import pytest
import torch
from attrs import evolve

from tests.compat.hpc_cases import assigned, attend
from tle_attn.compat import hpc_ops as hpc
from tle_attn.ops import plans
from tle_attn.spec.tasks import FLAGS
from tle_attn.testing import compare, make_decode_problem

pytestmark = pytest.mark.usefixtures("emulated")

#: word of a record: parts that its sequence is cut into
PARTS = 6


def lens(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def assign(kv_lens: torch.Tensor, task_map: torch.Tensor, kv_heads: int = 1, nq: int = 1, min_process_len: int = 64) -> torch.Tensor:
    return hpc.assign_attention_decode_task(kv_lens, task_map, kv_heads, nq, True, min_process_len)


def records(task_map: torch.Tensor) -> list[list[int]]:
    return task_map.view(torch.int32).view(-1, 8).tolist()


class TestWorkspace:
    def test_is_int8_and_small(self):
        made = hpc.get_attention_decode_task_workspace(3, 1 << 20, 2, min_process_len=64)
        assert (made.dtype, made.dim(), made.is_contiguous()) == (torch.int8, 1, True)
        assert made.numel() == 2 * (4 * 6 + 3) * 32, "12 emulated CTAs, 6 for each head, 32 bytes each"
        assert hpc.get_attention_decode_task_workspace(2, 64, 2).numel() == 12 * 32, "fewer sequences: each CTA has a task at most"

    def test_attention_before_an_assignment_does_nothing(self):
        problem = make_decode_problem([100, 5])
        output = torch.full((2, 8, 128), 3.0, dtype=torch.bfloat16)
        attend(problem, task_map=hpc.get_attention_decode_task_workspace(2, 128, 1), output=output)
        assert (output == 3).all()
        compare(attend(problem, task_map=assigned(problem, 64)), problem.reference()[0], rms=4e-3)


class TestAssign:
    def test_returns_the_map_it_filled(self):
        task_map = hpc.get_attention_decode_task_workspace(2, 4096, 1)
        before = task_map.clone()
        assert assign(lens(300, 20), task_map) is task_map
        assert not torch.equal(task_map, before)

    def test_tasks_cover_every_key_once(self):
        """Of each (sequence, head) pair: consecutive tiles from the first to the last, in as many parts as the record says."""
        kv_lens, kv_heads = [0, 700, 64, 65, 1000], 2
        task_map = assign(lens(*kv_lens), hpc.get_attention_decode_task_workspace(5, 1024, kv_heads), kv_heads)
        tiles: dict[int, list[tuple[int, int, int]]] = {}
        for seq, first, count, length, slot, _, parts, head_and_flags in records(task_map):
            if slot != -2:
                assert length == kv_lens[seq]
                pair = seq * kv_heads + head_and_flags // FLAGS
                tiles.setdefault(pair, []).append((first, count, parts))
        assert set(tiles) == set(range(len(kv_lens) * kv_heads))
        for pair, found in tiles.items():
            covered = [tile for first, count, _ in sorted(found) for tile in range(first, first + count)]
            assert covered == list(range(-(-kv_lens[pair // kv_heads] // 64)))
            assert {parts for *_, parts in found} == {len(found)}

    def test_bytes_and_words_are_the_same_map(self):
        as_bytes = hpc.get_attention_decode_task_workspace(2, 4096, 1)
        as_words = as_bytes.clone().view(torch.int32)
        assign(lens(700, 20), as_bytes), assign(lens(700, 20), as_words)
        assert torch.equal(as_bytes.view(torch.int32), as_words)
        problem = make_decode_problem([700, 20])
        assert torch.equal(attend(problem, task_map=as_bytes), attend(problem, task_map=as_words))

    def test_a_map_for_more_requests_serves_fewer(self):
        problem = make_decode_problem([300, 20, 64])
        task_map = hpc.get_attention_decode_task_workspace(50, 4096, 1)
        assign(problem.kv_lens, task_map)
        compare(attend(problem, task_map=task_map), problem.reference()[0], rms=4e-3)

    @pytest.mark.parametrize("asked,tokens", [(0, 64), (1, 64), (64, 64), (65, 128), (500, 512), (2048, 2048)])
    def test_min_process_len_in_whole_tiles(self, asked, tokens, monkeypatch):
        class Asked(Exception):
            pass

        def planner_for(query_tokens, min_tokens, *geometry):
            raise Asked(query_tokens, min_tokens)

        monkeypatch.setattr(plans, "planner_for", planner_for)
        with pytest.raises(Asked) as asked_for:
            assign(lens(300), hpc.get_attention_decode_task_workspace(1, 512, 1), nq=2, min_process_len=asked)
        assert asked_for.value.args == (2, tokens)

    def test_a_larger_minimum_makes_fewer_parts(self):
        task_map = hpc.get_attention_decode_task_workspace(1, 4096, 1)
        parts = [records(assign(lens(1024), task_map, min_process_len=n))[0][PARTS] for n in (64, 1024)]
        assert parts == [8, 1], "a task a slot; one task of the minimum"


class TestReuse:
    def test_one_map_for_layers_of_every_type(self):
        """Records depend on lengths and heads only: bf16 and both FP8 types, pages and groups may differ."""
        lengths = [700, 3, 64]
        layers = [
            make_decode_problem(lengths, seed=1),
            make_decode_problem(lengths, seed=2, page=16, heads=(4, 1)),
            make_decode_problem(lengths, seed=3, dtype="fp8", quant=1),
            make_decode_problem(lengths, seed=4, dtype="fp8", quant=0),
        ]
        task_map = assigned(layers[0], 64)
        planned = task_map.clone()
        for _ in range(2):
            for layer in layers:
                compare(attend(layer, task_map=task_map), layer.reference(p_quant=None)[0], rms=4e-2 if layer.is_fp8 else 4e-3)
        assert torch.equal(task_map, planned)

    def test_lengths_come_from_the_map(self):
        """As there: the operator does not read num_seq_kvcache when it has a map, so captured arguments may be old."""
        problem = make_decode_problem([600, 40, 64], seed=5)
        shorter = evolve(problem, kv_lens=lens(129, 0, 1))
        task_map = assigned(problem, 64)
        compare(attend(problem, task_map=task_map), problem.reference()[0], rms=4e-3)
        assign(shorter.kv_lens, task_map)
        compare(attend(problem, task_map=task_map), shorter.reference()[0], rms=4e-3)

    def test_mtp_of_an_assignment_is_query_tokens(self):
        counted = make_decode_problem([66, 300], query_tokens=3, seed=6)
        task_map = hpc.get_attention_decode_task_workspace(2, 512, 1)
        hpc.assign_attention_decode_task(counted.kv_lens - 3, task_map, 1, 3, False, 64)
        compare(attend(counted, mtp=2, task_map=task_map), counted.reference()[0], rms=4e-3)
