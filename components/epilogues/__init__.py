"""Epilogues: how the finished rows leave the kernel."""
