"""Masks: which keys a query sees (they join the chain `mask`, after every score change; masked scores are -inf).

Signature of a link: `f(args, s, key, query, head) -> s`.  A mask that lets whole tiles be skipped also joins the chain
`first_key(args, first, kv_len) -> first`: the first key that any query of a request can see.
"""
