"""Masks: which keys a query sees (they join the chain `mask`, after every score change; masked scores are -inf).

Signature of a link: `f(args, s, key, query, head, kv_len) -> s`, of which a mask takes `args`, `s` and what it needs.  A mask that lets whole
tiles be skipped also joins the chain `first_key(args, first, kv_len) -> first`: the first key that any query of a request can see.
"""
