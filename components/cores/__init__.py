"""Cores: the matrix products S = Q K^T in the orientation and size that a phase needs."""
