"""Softmax states: what is carried from one key tile to the next."""
