"""The method of timing, with recorded events in place of a GPU."""

from types import SimpleNamespace

import pytest
import torch

from tle_attn.report import timing


@pytest.fixture
def log(monkeypatch):
    """What is queued, in order; the k-th replay between two events takes k microseconds."""
    queued: list[str] = []
    clock = {"us": 0.0, "replays": 0}

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            queued.append("event")
            self.at = clock["us"]

        def elapsed_time(self, other: "Event") -> float:
            return (other.at - self.at) / 1e3

    def replay() -> None:
        queued.append("replay")
        clock["replays"] += 1
        clock["us"] += clock["replays"]

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: queued.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: queued.append("spin"))
    timer = object.__new__(timing.Timer)
    timer.samples = 5
    monkeypatch.setattr(timer, "_fill_l2", lambda: queued.append("flush"), raising=False)
    return SimpleNamespace(queued=queued, timer=timer, graph=SimpleNamespace(replay=replay))


def test_median_of_replays_behind_a_spin_kernel(log):
    assert log.timer.us(log.graph) == pytest.approx(6.0)  # three warm-up replays, then 4, 5, 6, 7, 8
    assert log.queued == ["replay"] * 3 + ["synchronize"] + ["spin", "event", "replay", "event"] * 5 + ["synchronize"]


def test_cold_fills_the_l2_before_each_replay(log):
    log.timer.us_cold(log.graph)
    assert log.queued[4:-1] == ["flush", "spin", "event", "replay", "event"] * 5


def test_sustained_is_the_mean_after_as_long_a_load(log, monkeypatch):
    monkeypatch.setattr(timing, "SUSTAINED_MS", 0.024)
    mean = log.timer.us_sustained(log.graph)  # the median of 6 us makes it 4 replays: the 9th to the 12th without an event before, then four that count
    assert mean == pytest.approx((13 + 14 + 15 + 16) / 4)
    assert log.queued[-11:] == ["replay"] * 4 + ["event"] + ["replay"] * 4 + ["event", "synchronize"]
