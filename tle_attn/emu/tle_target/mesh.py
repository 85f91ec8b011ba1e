"""The emulated device mesh and cluster calls of ``tle``: clusters of CTAs in one dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tle_attn.emu import ops
from tle_attn.emu.integers import Int32, Int64
from tle_attn.emu.tiles import Tile
from tle_attn.emu.tle_target.errors import is_static, not_emulated, require
from tle_attn.emu.tle_target.shared import BufferedTensor


class device_mesh:  # noqa: N801 - TLE's name
    """A topology: levels of named axes with their sizes."""

    def __init__(self, topology=None):
        require(isinstance(topology, Mapping) and topology, "device_mesh: the topology must be a non-empty mapping of level to axes")
        axes: list[tuple[str, int]] = []
        for level, described in topology.items():
            require(isinstance(level, str) and level, f"device_mesh: invalid level name {level!r}")
            axes += [(level, described)] if is_static(described) else _axes(level, described)
        require(all(is_static(n) and n > 0 for _, n in axes), f"device_mesh: sizes must be compile-time integers > 0, got {axes}")
        self.dim_names, self.shape = tuple(name for name, _ in axes), tuple(n for _, n in axes)
        require(len(set(self.dim_names)) == len(axes), f"device_mesh: axis names must be unique, got {self.dim_names}")

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster: the axes named after clusters, else after blocks, else all."""
        for word in ("cluster", "block", ""):
            sizes = [n for name, n in zip(self.dim_names, self.shape, strict=True) if word in name]
            if sizes:
                break
        return math.prod(sizes)


def _axes(level: str, described: Any) -> list[tuple[str, int]]:
    require(isinstance(described, (list, tuple)) and described, f"device_mesh: level {level!r} must be a size or a list of (name, size)")
    for entry in described:
        named = isinstance(entry, (list, tuple)) and len(entry) == 2 and isinstance(entry[0], str)
        require(named, f"device_mesh: level {level!r}: {entry!r} is not (name, size)")
    return [(name, size) for name, size in described]


def _apply(mesh: Any, what: str) -> device_mesh:
    """A mesh in a call sets the cluster size of the launch."""
    require(isinstance(mesh, device_mesh), f"{what}: mesh must be a device_mesh, got {type(mesh).__name__}")
    if len(mesh.shape) != 1 or "cluster" not in mesh.dim_names[0]:
        raise not_emulated(f"a mesh {dict(zip(mesh.dim_names, mesh.shape, strict=True))} other than one cluster axis")
    ops.cluster_dims(mesh.cluster_size)
    return mesh


def shard_id(mesh, axis):
    mesh = _apply(mesh, "shard_id")
    known = axis in mesh.dim_names if isinstance(axis, str) else is_static(axis) and -1 <= axis < 1
    require(known, f"shard_id: unknown axis {axis!r}; the mesh has {mesh.dim_names}")
    return ops.cluster_rank()


def _rank(shard_id: Any, scope: Any) -> int:
    if isinstance(shard_id, Sequence):
        require(scope is not None, "remote: mesh coordinates need scope=")
        require(all(is_static(i) for i in shard_id), f"remote: mesh coordinates must be compile-time integers, got {shard_id}")
        require(len(shard_id) == len(scope.shape), f"remote: {len(shard_id)} coordinate(s) for a mesh of rank {len(scope.shape)}")
        require(all(0 <= i < n for i, n in zip(shard_id, scope.shape, strict=True)), f"remote: coordinates {shard_id} outside of the mesh {scope.shape}")
        return shard_id[0]
    require(not isinstance(shard_id, Tile), "remote: shard_id must be a scalar int32")
    require(isinstance(shard_id, int) and type(shard_id) is not bool, f"remote: shard_id must be an integer, got {type(shard_id).__name__}")
    require(not isinstance(shard_id, Int64) or isinstance(shard_id, Int32), "remote: a runtime shard_id must be int32, got int64")
    require(shard_id >= 0, f"remote: shard_id must be >= 0, got {shard_id}")
    return shard_id


def remote(tensor, shard_id, scope=None, space="cluster"):
    require(scope is None or isinstance(scope, device_mesh), f"remote: scope must be a device_mesh, got {type(scope).__name__}")
    if space != "cluster" or not isinstance(tensor, BufferedTensor):
        raise not_emulated("remote of another space than cluster, or of pointers")
    if scope is not None:
        _apply(scope, "remote")
    return tensor.at_shard(_rank(shard_id, scope))


def distributed_barrier(mesh=None):
    if mesh is not None:
        _apply(mesh, "distributed_barrier")
    ops.cluster_barrier()
