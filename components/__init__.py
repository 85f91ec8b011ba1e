"""The block library: one folder per kind, one block per file."""
