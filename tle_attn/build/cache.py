"""Compiled kernels on disk, safe under many processes.

Layout of the folder (``TLE_ATTN_CACHE_DIR``, by default ``tle_attn`` in the user's cache folder)::

    modules/<digest>.py     generated modules
    kernels/<key>/          one compiled kernel: Triton's own cache of it, ptxas.log, facts.json, checksums.json
    locks/<key>             held (flock) while a kernel is compiled or read; a lock dies with its process
    logs/<key>.log          compiler output of a failed compile
    launchers/              Triton's launch stubs

Triton's own cache setting is left alone: it is replaced only while a kernel of ours is compiled or loaded.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define

from tle_attn.build.facts import Facts
from tle_attn.errors import CacheWarning

#: of what lies in an entry; part of its key
FORMAT = "1"
_process_lock = threading.RLock()
_compiled = 0


def compile_count() -> int:
    """Real compilations of this process, cache hits not counted."""
    return _compiled


def digest(*parts: str) -> str:
    """Digest of texts; the same in every process."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _usable(folder: Path) -> Path:
    """`folder` if files can be written there, else a temporary folder, and said so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return folder
    except OSError as error:
        temporary = Path(tempfile.mkdtemp(prefix="tle_attn_"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        warnings.warn(f"compile cache {folder} cannot be written or locked ({error.strerror}): this process compiles into {temporary}, removed at its end",
                      CacheWarning, stacklevel=2)
        return temporary


def folder() -> Path:
    """The cache folder in use."""
    chosen = os.environ.get("TLE_ATTN_CACHE_DIR")
    return _usable(Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tle_attn")


@contextmanager
def _locked(name: str) -> Iterator[None]:
    path = folder() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with _process_lock, open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _triton_cache_at(path: Path) -> Iterator[None]:
    from triton import knobs

    with knobs.cache.scope():
        knobs.cache.dir = str(path)
        yield


@contextmanager
def launchers() -> Iterator[None]:
    """Hold the lock and the folder of Triton's launch stubs."""
    with _locked("launchers"), _triton_cache_at(folder() / "launchers"):
        yield


def _write(path: Path, text: str) -> None:
    """Write a file that no reader sees half done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with open(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


def _checksums(path: Path) -> dict[str, str]:
    files = sorted(f for f in path.rglob("*") if f.is_file() and f.name not in ("checksums.json", "facts.json"))
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def _read_json(path: Path) -> Any:
    """The value, or None where the file is missing or not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


@functools.cache
def _facts_code() -> str:
    """Digest of the code that measures facts: what an older version of it noted does not count."""
    return digest(Path(sys.modules[Facts.__module__].__file__).read_text())


@define(eq=False)
class Entry:
    """The place of one compiled kernel."""

    path: Path

    @property
    def log_file(self) -> Path:
        """Where the compiler's output of a failed compile goes."""
        return folder() / "logs" / f"{self.path.name}.log"

    def module_file(self, text: str) -> Path:
        """A file with this text, named by its digest: Triton's cache key holds the name, but not what a name in the text is an alias of."""
        path = folder() / "modules" / f"module_{digest(text)[:16]}.py"
        if not path.exists() or path.read_text() != text:
            _write(path, text)
        return path

    def discard_damaged(self) -> None:
        """Remove the entry if a file of it is missing or changed since it was written."""
        if self.path.exists() and _read_json(self.path / "checksums.json") != _checksums(self.path):
            warnings.warn(f"compile cache entry {self.path} is damaged or incomplete: compiled again", CacheWarning, stacklevel=2)
            shutil.rmtree(self.path)

    @contextmanager
    def triton_cache(self) -> Iterator[None]:
        """Let Triton use this entry as its cache; counts a real compilation and notes its files' checksums. A failed one leaves nothing."""
        from triton import knobs

        users_listener = knobs.compilation.listener
        hits = []

        def listener(**event: Any) -> None:
            hits.append(event["cache_hit"])
            if users_listener:
                users_listener(**event)

        self.discard_damaged()
        with _triton_cache_at(self.path), knobs.compilation.scope(), knobs.nvidia.scope():
            knobs.nvidia.dump_ptxas_log = True
            knobs.compilation.listener = listener
            knobs.compilation.store_binary_only = False
            try:
                yield
            finally:
                if not hits:
                    shutil.rmtree(self.path, ignore_errors=True)
        if False in hits:
            global _compiled
            _compiled += 1
            _write(self.path / "checksums.json", json.dumps(_checksums(self.path)))

    @property
    def report(self) -> str:
        """What ptxas said when it made the machine code."""
        return (self.path / "ptxas.log").read_text()

    def keep_report(self, printed: str) -> None:
        """Keep what ptxas says of a real compilation; nothing is printed in a cache hit."""
        if printed:
            _write(self.path / "ptxas.log", printed)

    def facts(self, measure: Callable[[], Facts]) -> Facts:
        """Facts that an earlier process noted, measured and noted now where there are none."""
        path = self.path / "facts.json"
        noted = _read_json(path) or {}
        if noted.get("measured_by") == _facts_code():
            return Facts.from_dict(noted["facts"])
        facts = measure()
        _write(path, json.dumps({"measured_by": _facts_code(), "facts": facts.to_dict()}))
        return facts


@contextmanager
def entry(key: str) -> Iterator[Entry]:
    """The entry of a kernel, locked against other processes and threads."""
    with _locked(key):
        yield Entry(folder() / "kernels" / key)
