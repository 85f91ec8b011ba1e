"""Measurements on a Hopper GPU: `python -m benchmarks.decode --help`.

timing: CUDA-graph replays behind a spin kernel; workloads: the batches; floor: how fast the same pages can be read at all;
records: results as JSON; compare: against a recorded baseline; watchdog: a kernel that hangs ends the process and says which.
"""
