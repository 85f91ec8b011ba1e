"""Loaders: blocks that bring key and value tiles from the paged cache into shared memory."""
