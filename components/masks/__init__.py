"""Masks: which keys a query sees (they join the chain `mask`, after every score change; masked scores are -inf).

A link takes and returns what a link of the chain `score` does.  A mask that lets whole tiles be skipped also joins the chain
`first_key(args, first, kv_len) -> first`: the first key that any query of a request can see.
"""
