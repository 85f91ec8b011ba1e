"""Key tiles that a query tile visits, latest first: all that the causal rule leaves, or those that a block mask keeps.

Interface: `survey(args, seq, head, row0, first, last)` counts them once per query tile (row0: its first row; first, last: the causal range); `open_tiles` and `next_tile` walk over them.
"""
