"""Scores: elementwise changes of the logits (they join the chain `score`, in recipe order, before any mask).

Signature of a link: `f(args, s, key, query, head) -> s` with s in base-2 units (logit * log2(e)); key and query are absolute token
positions, head the query head, each an int32 tile that broadcasts against s.
"""
