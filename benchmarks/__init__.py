"""Measurements on a Hopper GPU: `python -m benchmarks.decode --help`, `python -m benchmarks.prefill --help`.

workloads, prefill_cases, prefill_problems: the batches; floor: how fast the same pages can be read at all; the method of timing is tle_attn.report.timing;
records: results as JSON; compare: against a recorded baseline; watchdog: a kernel that hangs ends the process and says which.
"""
