"""Sources: where the merge kernel finds partial results (states): an output and a log-sum-exp of every (token, head).

A source provides `read_states(args, m, l, acc, token, head, d, here) -> m, l, acc`, which calls the mainloop's `add_state` once for each.
"""
