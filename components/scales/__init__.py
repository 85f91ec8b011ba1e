"""Scales: what a raw dot product is multiplied by before the softmax."""
