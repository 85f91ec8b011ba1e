"""Rings: how many tiles are in flight, and who may touch a slot when."""
