"""The dialect on stock Triton's Gluon, 3.6 to 3.9, for sm_90a: prelude source, of which the linker copies what a kernel uses.

The files of this package are one source in parts (`codegen/prelude.py` says in which order); none is meant to be imported alone.

Gluon's own calls serve wherever there is one. Assembly serves for what Gluon lacks: named barriers, acquire loads, warp votes and clusters of CTAs compiled
one program per CTA. Shared-memory addresses and cluster launches also need a change of the compiler's intermediate texts, made by a compile hook that is
installed when a module that uses them is imported. Their assembly holds text which ptxas refuses and only the hook removes, so that a compile without the
hook fails instead of giving a wrong kernel, and no cache can hold a wrong one.
"""
