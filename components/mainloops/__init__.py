"""Mainloops: the blocks that order the others and own the pipeline."""
