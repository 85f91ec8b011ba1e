"""Comparing a kernel's result with the reference, with failures that say where and by how much."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: What to call a query row in a failure: from its number to words.
RowName = Callable[[int], str]


def relative_rms(out: Tensor, ref: Tensor) -> float:
    """RMS of the error over RMS of the reference.  Two zero tensors give 0; NaN or infinity in only one of them gives infinity."""
    return float(_relative_rms(out.double().reshape(1, -1), ref.to(out.device).double().reshape(1, -1)))


def rms_of_rows(out: Tensor, ref: Tensor, row_error: Tensor | None = None) -> float:
    """Root mean square of the rows' relative RMS errors, of rows that are not zero in both; `row_error` as in `compare`.

    Every row counts alike.  In `relative_rms` one row may outweigh all others, whose error may be the one rounding of its largest weight.
    """
    ref = ref.to(out.device).double()
    return _rms_of(_beyond(out.double(), ref, row_error), ref)


def compare(
    out: Tensor, ref: Tensor, *, rms: float, row_rms: float | None = None, row_error: Tensor | None = None, name_row: RowName | None = None
) -> None:
    """AssertionError unless the `rms_of_rows` of `out` is at most `rms`, and the relative RMS error of each row of the last dimension `row_rms` (4 rms).

    The bound on rows shows a single wrong row among thousands.  A row that is exactly zero in `ref` must be exactly zero
    in `out`, and NaN must be exactly where `ref` has it.  `out`, `ref`: [tokens, heads, dim]; `row_error` [tokens, heads]: a
    norm by which a row may be off besides; `name_row` names a token.
    """
    _same_shape("out", out, ref)
    row_limit = 4 * rms if row_rms is None else row_rms
    ref = ref.to(out.device).double()
    by_row = _beyond(out.double(), ref, row_error)
    overall = _rms_of(by_row, ref)
    bad = torch.nonzero(by_row > row_limit)
    if overall <= rms and not len(bad):
        return
    besides = "" if row_error is None else ", beside the roundings of weights"
    lines = [f"out is not the reference: relative RMS {overall:.3g} (allowed {rms:.3g}); {len(bad)} of {by_row.numel()} rows above {row_limit:.3g}{besides}"]
    if len(bad):
        worst = [int(i) for i in torch.nonzero(by_row == by_row.max())[0]]
        for label, where in (("first", bad[0].tolist()), ("worst", worst)):
            place = tuple(where)
            lines.append(f"  {label} bad row {where}{_named(name_row, where)}: relative RMS {float(by_row[place]):.3g}, {_contents(out[place], ref[place])}")
        lines.append(f"  bad rows: {_preview(bad)}")
    raise AssertionError("\n".join(lines))


def compare_lse(lse: Tensor, ref: Tensor, *, atol: float, name_row: RowName | None = None) -> None:
    """AssertionError unless `lse` is `ref` within `atol`, in the same logarithm, and -inf or NaN exactly where `ref` is."""
    _same_shape("lse", lse, ref)
    ref = ref.to(lse.device).double()
    wide = lse.double()
    wrong = torch.where(torch.isfinite(ref), ~((wide - ref).abs() <= atol), wide != ref) & ~(torch.isnan(wide) & torch.isnan(ref))
    bad = torch.nonzero(wrong)
    if len(bad):
        where = bad[0].tolist()
        place = tuple(where)
        first = f"first {where}{_named(name_row, where)}: {float(lse[place])!r}, reference {float(ref[place])!r}"
        raise AssertionError(f"lse is not the reference: {len(bad)} of {wrong.numel()} off by more than {atol:.3g}; {first}\n  bad: {_preview(bad)}")


def _relative_rms(out: Tensor, ref: Tensor) -> Tensor:
    """Along the last dimension."""
    same_nan = torch.isnan(out) & torch.isnan(ref)
    error = (out - ref).masked_fill(same_nan, 0.0).norm(dim=-1)
    size = ref.masked_fill(same_nan, 0.0).norm(dim=-1)
    return torch.where(error == 0, 0.0, torch.nan_to_num(error / size, nan=math.inf, posinf=math.inf))


def _beyond(out: Tensor, ref: Tensor, row_error: Tensor | None) -> Tensor:
    """Relative RMS error of each row, less what it may be off besides: of a row without a size, nothing."""
    by_row = _relative_rms(out, ref)
    if row_error is None:
        return by_row
    return (by_row - torch.nan_to_num(row_error.to(out.device) / ref.norm(dim=-1), nan=0.0, posinf=0.0)).clamp(min=0.0)


def _rms_of(by_row: Tensor, ref: Tensor) -> float:
    counted = by_row[(by_row > 0) | (ref.norm(dim=-1) > 0)]
    return float(counted.square().mean().sqrt()) if len(counted) else 0.0


def _same_shape(name: str, out: Tensor, ref: Tensor) -> None:
    if out.shape != ref.shape:
        raise AssertionError(f"{name} has shape {list(out.shape)}, the reference {list(ref.shape)}")


def _named(name_row: RowName | None, where: list[int]) -> str:
    return "" if name_row is None else f" ({name_row(where[0])}{', head ' + str(where[1]) if len(where) > 1 else ''})"


def _contents(row: Tensor, ref: Tensor) -> str:
    row, ref = row.double(), ref.double()
    if not torch.isfinite(row).all():
        return f"{int(torch.isnan(row).sum())} NaN and {int(torch.isinf(row).sum())} infinities in {row.numel()} elements"
    return f"starts {[round(x, 4) for x in row[:4].tolist()]}, reference {[round(x, 4) for x in ref[:4].tolist()]}"


def _preview(places: Tensor, limit: int = 8) -> str:
    return ", ".join(str(place) for place in places[:limit].tolist()) + (f" and {len(places) - limit} more" if len(places) > limit else "")
