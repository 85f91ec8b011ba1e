"""Packages of the wheel: tle_attn, with the top-level folders `components` and `recipes` installed inside it.  The rest is in pyproject.toml."""

from setuptools import find_packages, setup

INSIDE = ("components", "recipes")

setup(
    packages=[
        *find_packages(include=["tle_attn", "tle_attn.*"]),
        *(f"tle_attn.{name}" for folder in INSIDE for name in find_packages(include=[folder, f"{folder}.*"])),
    ],
    package_dir={f"tle_attn.{folder}": folder for folder in INSIDE},
)
