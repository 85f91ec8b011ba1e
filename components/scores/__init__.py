"""Scores: elementwise changes of the logits (they join the chain `score`, in recipe order, before any mask).

A link takes `args` if it reads arguments, s, and what it needs of: key, query (token positions), head (query head), each an int32 tile that broadcasts
against s; distance (query - key, an fp32 tile, which costs prefill an addition an element); seq (sequence of the batch) and first_new (position of the
first of this step's tokens), scalars, in decode alone.  It returns s.  s is in base-2 units: logit * log2(e).  Positions are absolute, or, in a kernel
all of whose masks and scores say RELATIVE, right up to a number that query and key share.

A score without a key joins `denominator(args, l, m, head) -> l` (a row's complete sum, which carries 2**P_EXPONENT, relative to the base-2 maximum m) and
`log_sum(args, value, head) -> value` (the base-2 logarithm of the sum, -inf for a row without keys); head has the shape of l and value.
"""
