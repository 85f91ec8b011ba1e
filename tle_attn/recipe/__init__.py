"""Recipes: TOML files that name blocks and their options."""

from .recipe import Recipe, list_recipes, load

__all__ = ["Recipe", "list_recipes", "load"]
