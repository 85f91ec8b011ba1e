"""Reducers: how the partial results of a split sequence become one."""
