"""Cascade: decode of requests that share prefixes.  A prefix is read once for all query rows of its group, each suffix by its own request.

Composed of plans: one decode kernel over the prefixes, whose sequences have the queries of several requests as their query tokens and no causality;
one over the suffixes; and the merge of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from ..errors import InputError, InputTypeError
from ..spec import DType, Kernel, find_block
from . import inputs
from .base import outputs, resolve_device
from .decode import DecodePlan, plan_decode
from .merge import MergePlan, plan_merge

if TYPE_CHECKING:
    import torch

    from ..recipe import Recipe

#: query rows of a key/value head that a decode kernel takes
MOST_ROWS = 64
#: blocks whose meaning does not depend on where a key stands, nor on how many parts the keys come in; the passes put a mask of their own in place of the causal one
WITHOUT_POSITIONS = {"loader/paged_tma", "mask/causal", "score/soft_cap", "softmax/online"}


@frozen
class Layout:
    """Where the query rows of requests are in the prefix pass, whose sequences (chunks) hold `width` requests each.

    Attributes:
        width: requests of a chunk.
        group_of: group of each chunk.
        request_of: request of each place, [chunks * width]; places behind a group's last request repeat it.
        place_of: place of each request.
    """

    width: int
    group_of: list[int] = field(factory=list)
    request_of: list[int] = field(factory=list)
    place_of: list[int] = field(factory=list)

    @classmethod
    def of(cls, groups: Sequence[int], rows: int) -> Layout:
        """For groups of these many requests with `rows` query rows of a key/value head each."""
        made = cls(max(1, min(MOST_ROWS // rows, max(groups, default=1))))
        for group, count in enumerate(groups):
            first = len(made.place_of)
            for start in range(0, count, made.width):
                made.group_of.append(group)
                made.place_of.extend(range(len(made.request_of), len(made.request_of) + min(made.width, count - start)))
                made.request_of.extend(first + min(start + i, count - 1) for i in range(made.width))
        return made


@frozen(eq=False, kw_only=True)
class CascadePlan:
    """Plans of a cascade; see `tle_attn.cascade`.

    Attributes:
        groups: requests that share each prefix, in the order of the batch.
        prefix, suffix: decode plans with log-sum-exp.
        merge: the merge of both.
        layout: where the queries are in the prefix pass.
        kernel: the kernel that the cascade stands for.
    """

    kernel: Kernel
    groups: tuple[int, ...]
    prefix: DecodePlan
    suffix: DecodePlan
    merge: MergePlan
    layout: Layout
    _index: dict[str, torch.Tensor] = field(repr=False)
    _side: Any = field(repr=False)  #: the stream of the prefix pass; None without a GPU

    @property
    def device(self) -> torch.device:
        return self.suffix.device

    @property
    def workspace_bytes(self) -> int:
        return self.prefix.workspace_bytes + self.suffix.workspace_bytes

    def schedule(
        self,
        prefix_lens: torch.Tensor,
        suffix_lens: torch.Tensor,
        *,
        prefix_ids: torch.Tensor | None = None,
        suffix_ids: torch.Tensor | None = None,
        new_kv_included: bool = True,
    ) -> None:
        """Launch the planners for these lengths; one call serves all layers of a step.  For recipes with a task map; the page ids where its records hold them."""
        for name, part, ids in (("prefix", self.prefix, prefix_ids), ("suffix", self.suffix, suffix_ids)):
            if ids is None and part.kernel.mainloop.schedule.page_ids:
                raise InputError(f"{name}_ids: missing; task records hold page ids (schedule.page_ids)")
        self._check_tables(prefix_ids, prefix_lens, suffix_ids, suffix_lens, without_ids=True)
        self.prefix.schedule(self._of_chunks(prefix_lens), block_ids=None if prefix_ids is None else self._of_chunks(prefix_ids))
        self.suffix.schedule(suffix_lens, block_ids=suffix_ids, new_kv_included=new_kv_included)

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        prefix_ids: torch.Tensor,
        prefix_lens: torch.Tensor,
        suffix_ids: torch.Tensor,
        suffix_lens: torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        new_kv_included: bool = True,
        q_scale: torch.Tensor | None = None,
        scheduled: bool = False,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention of every request's query tokens over its group's prefix and its own suffix.

        Args:
            q: [batch * query tokens, query heads, head_dim], requests of a group next to each other.
            k_cache, v_cache: as for `DecodePlan.run`; prefixes and suffixes are pages of the same caches.
            prefix_ids, prefix_lens: int32 [groups, width] and [groups]; a group without a prefix has length 0.
            suffix_ids, suffix_lens: int32 [batch, width] and [batch]: each request's tokens behind the prefix, from a page of its own on.
                A request with an empty suffix sees its prefix alone.
            out, lse: written in place if given; as for `DecodePlan.run`.
            new_kv_included: suffix_lens counts this step's tokens already.
            q_scale: of fp8 queries [batch * query tokens, query heads].
            scheduled: `schedule` was called for these lengths already.
            options: further options of `DecodePlan.run`, for both passes: softmax_scale, k_scale, v_scale, debug, arguments of blocks.

        Returns:
            (out, lse or None), of the recipe's epilogue.

        Raises:
            InputTypeError, InputError: the tensor and the rule it breaks.
        """
        inputs.check_queries(q, self.suffix.kernel.problem, self.suffix.batch, self.suffix.query_heads, self.device)
        self._check_tables(prefix_ids, prefix_lens, suffix_ids, suffix_lens)
        shape = (len(q), self.suffix.query_heads, self.kernel.problem.head_dim)
        out, lse = outputs(self.merge.kernel, self.device, out, lse, shape, "batch * query_tokens, query_heads, head_dim")
        own = {"q_scale": q_scale} if q_scale is not None else {}
        own_prefix = {"q_scale": self._to_places(q_scale)} if q_scale is not None else {}
        with self._beside() as done:
            first, first_lse = self.prefix.run(
                self._to_places(q), k_cache, v_cache, self._of_chunks(prefix_ids), self._of_chunks(prefix_lens), scheduled=scheduled, **own_prefix, **options
            )
            assert first_lse is not None  # the kernel names a base
            first, first_lse = self._to_requests(first), self._to_requests(first_lse)
        last, last_lse = self.suffix.run(q, k_cache, v_cache, suffix_ids, suffix_lens, new_kv_included=new_kv_included, scheduled=scheduled, **own, **options)
        assert last_lse is not None
        done(first, first_lse)
        return self.merge.run([first, last], [first_lse, last_lse], out=out, lse=lse)

    @contextmanager
    def _beside(self) -> Iterator[Callable[..., None]]:
        """On a GPU, launch what is inside on a stream beside the current one: the passes do not need each other, and a short one fills what a long one leaves.

        Gives a function that makes the current stream wait for it; it is told the tensors that come from there.
        """
        import torch

        if self.device.type != "cuda":
            yield lambda *tensors: None
            return
        current, side = torch.cuda.current_stream(self.device), self._side

        def done(*tensors: torch.Tensor) -> None:
            current.wait_stream(side)
            for tensor in tensors:
                tensor.record_stream(current)

        side.wait_stream(current)
        with torch.cuda.stream(side):
            yield done

    def _check_tables(
        self, prefix_ids: torch.Tensor | None, prefix_lens: torch.Tensor, suffix_ids: torch.Tensor | None, suffix_lens: torch.Tensor, *, without_ids: bool = False
    ) -> None:
        """Page tables and lengths of both passes; `without_ids`: a table may be left out."""
        for name, ids, lens, axis, count in (("prefix", prefix_ids, prefix_lens, "groups", len(self.groups)), ("suffix", suffix_ids, suffix_lens, "batch", self.suffix.batch)):
            if not (without_ids and ids is None):
                inputs.want(ids, f"{name}_ids", DType.I32, (count, None), self.device, f"{axis}, pages")
            inputs.want(lens, f"{name}_lens", DType.I32, (count,), self.device, axis)

    def _of_chunks(self, of_groups: torch.Tensor) -> torch.Tensor:
        """Rows of groups repeated for each of their chunks."""
        return of_groups.index_select(0, self._index["group_of"]) if "group_of" in self._index else of_groups

    def _to_places(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of requests, query tokens together, in the order of the prefix pass."""
        return self._select(rows, "request_of")

    def _to_requests(self, rows: torch.Tensor) -> torch.Tensor:
        """The way back."""
        if "place_of" in self._index:
            return self._select(rows, "place_of")
        return rows[: self.suffix.batch * self.kernel.problem.query_tokens]

    def _select(self, rows: torch.Tensor, index: str) -> torch.Tensor:
        if index not in self._index:
            return rows
        tokens = rows.unflatten(0, (-1, self.kernel.problem.query_tokens))
        return tokens.index_select(0, self._index[index]).flatten(0, 1)


def cascade(
    what: Recipe | Kernel | str, *, groups: Sequence[int], query_heads: int, kv_heads: int, device: Any = None, target: str = "gluon", seed: int = 0, **problem: Any
) -> CascadePlan:
    """A plan for decode of requests that share prefixes.

    Args:
        what: a decode recipe, its name, or a Kernel.  Its masks and scores may not depend on where a key stands: in a part of the keys that is not known.
        groups: how many requests share each prefix; their sum is the batch, and requests of a group are neighbours in it.
        query_heads, kv_heads, device, target, seed, problem: as for `tle_attn.plan`.

    Returns:
        A CascadePlan.  Its result is that of the recipe, rounded once: both passes give fp32.

    Raises:
        SpecError, InputError: what cannot be served, and why.
        TargetUnavailable: the target cannot run here.
    """
    import torch

    from ..recipe import load

    if isinstance(groups, (str, bytes)) or not isinstance(groups, Sequence):
        raise InputTypeError(f"groups: a list of counts is wanted, not {type(groups).__name__}")
    for count in groups:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"groups: {count!r} where every group has an integer of requests from 1 up")
    inputs.check_counts(sum(groups), query_heads, kv_heads)
    if isinstance(what, str):
        what = load(what)
    kernel = what if isinstance(what, Kernel) else what.kernel(group=query_heads // kv_heads, **problem)
    _check(kernel)
    layout = Layout.of(groups, kernel.problem.rows)
    common = {"query_heads": query_heads, "kv_heads": kv_heads, "device": resolve_device(device, target), "target": target, "seed": seed}
    suffix = plan_decode(partial_kernel(kernel), batch=sum(groups), **common)
    prefix = plan_decode(prefix_kernel(kernel, layout.width), batch=len(layout.group_of), **common)
    merge = plan_merge(merge_kernel(kernel), device=suffix.device, target=target, seed=seed)
    index = _index(layout, len(groups), suffix.device)
    side = torch.cuda.Stream(suffix.device) if suffix.device.type == "cuda" else None
    return CascadePlan(kernel=kernel, groups=tuple(groups), prefix=prefix, suffix=suffix, merge=merge, layout=layout, index=index, side=side)


def _check(kernel: Kernel) -> None:
    """What a cascade can be made of."""
    if kernel.mainloop.PHASE != "decode":
        raise InputError(f"{kernel.name}: its mainloop {kernel.mainloop.NAME} is for {kernel.mainloop.PHASE}, and a cascade is made of decode kernels")
    mainloop: Any = kernel.mainloop
    others = [block.label() for block in (mainloop.loader, *mainloop.score, *mainloop.mask, mainloop.softmax) if block.label() not in WITHOUT_POSITIONS]
    if others:
        raise InputError(
            f"{kernel.name}: a cascade cannot have {', '.join(others)}; allowed: {', '.join(sorted(WITHOUT_POSITIONS))} "
            "(the passes see parts of the keys, where positions are others, and the last tokens are all in the suffix)"
        )


def partial_kernel(kernel: Kernel) -> Kernel:
    """The kernel with a result that can be merged: fp32 and its log-sum-exp."""
    mainloop: Any = kernel.mainloop
    return evolve(kernel, name=f"{kernel.name}/suffix", mainloop=evolve(mainloop, epilogue=evolve(mainloop.epilogue, dtype=DType.F32, lse="2")))


def prefix_kernel(kernel: Kernel, requests: int) -> Kernel:
    """The kernel for the queries of so many requests at once, each of which sees every key; with as many stages of its ring as then fit."""
    mainloop: Any = partial_kernel(kernel).mainloop
    problem = evolve(kernel.problem, query_tokens=kernel.problem.query_tokens * requests)
    every_key = (find_block("mask", "length")(),)
    return evolve(kernel, name=f"{kernel.name}/prefix", problem=problem, mainloop=evolve(mainloop, mask=every_key, ring=evolve(mainloop.ring, stages=None)))


def merge_kernel(kernel: Kernel) -> Kernel:
    """The merge of two partial results into what the kernel writes."""
    from ..recipe import load

    epilogue: Any = kernel.mainloop.epilogue
    options = {"source.dtype": "f32", "mainloop.base": "2", "epilogue.dtype": epilogue.dtype.value, "epilogue.lse": epilogue.lse}
    return load("merge/list").set(options).kernel(head_dim=kernel.problem.v_dim)


def _index(layout: Layout, groups: int, device: torch.device) -> dict[str, torch.Tensor]:
    """The layout on the device, without what is as it was."""
    import torch

    lists = {"group_of": (layout.group_of, groups), "request_of": (layout.request_of, len(layout.place_of)), "place_of": (layout.place_of, len(layout.place_of))}
    return {name: torch.tensor(index, device=device) for name, (index, count) in lists.items() if index != list(range(count))}
