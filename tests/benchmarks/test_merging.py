"""Benchmarks of cascades and of merging across GPUs: what can be said of them without a GPU."""

import torch

from benchmarks import cascade, parallel


def test_prefixes_end_with_a_page():
    """So that the same requests have whole tables for plain decode."""
    assert all(case.prefix % cascade.PAGE == 0 and case.requests > 1 for case in cascade.CASES)


def test_heads_can_be_shared_by_the_gpus_of_a_host():
    assert all(heads % 8 == 0 for _, heads in parallel.SHAPES)


def test_two_gpus_are_wanted(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("sys.argv", ["parallel"])
    assert parallel.main() == 2 and "two GPUs are wanted" in capsys.readouterr().out
