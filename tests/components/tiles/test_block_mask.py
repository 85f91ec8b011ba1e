"""Block masks: what the survey counts and what the walk visits, against the definition, for masks of every width that matters."""

import pytest
import torch

from tests.components.tiles.walk import check, walk_kernel
from tle_attn.components.tiles.block_mask import BlockMask

WIDTHS = [1, 2, 31, 32, 33, 63, 64, 65, 200, 1024]
PATTERNS = {
    "nothing": lambda n: torch.zeros(n),
    "everything": lambda n: torch.full((n,), 255),
    "even tiles": lambda n: torch.arange(n) % 2 == 0,
    "odd tiles": lambda n: torch.arange(n) % 2 * 7,
    "the first": lambda n: torch.arange(n) == 0,
    "the last": lambda n: torch.arange(n) == n - 1,
    "the first lane of each group": lambda n: torch.arange(n) % 32 == 0,
    "the last lane of each group": lambda n: torch.arange(n) % 32 == 31,
    "sparse": lambda n: (torch.rand(n) < 0.03) * torch.randint(1, 256, (n,)),
    "half": lambda n: (torch.rand(n) < 0.5) * torch.randint(1, 256, (n,)),
}


def check_mask(row: torch.Tensor, last: int, target: str, device: str, warps: int = 4) -> None:
    """`row` in the middle of a mask [2, 3, 4, columns + 5] whose other bytes say the opposite."""
    columns = len(row)
    whole = torch.ones(2, 3, 4, columns + 5, dtype=torch.uint8)
    whole[1, 2, 3, :columns] = row.to(torch.uint8)
    mask = whole.to(device)[..., :columns]
    strides = {f"block_mask_{name}_stride": mask.stride(i) for i, name in enumerate(("batch", "head", "row"))}
    values = {"block_mask": mask, **strides, "block_mask_columns": columns, "seq": 1, "head": 2, "row0": 3 * 128}
    check(walk_kernel(BlockMask(), warps), BlockMask.reference(row, 0, last), last, target, device, **values)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("width", WIDTHS)
def test_masks_as_wide_as_the_causal_range(target, device, width, name):
    if target == "tle-emulated" and width > 200:
        pytest.skip("the cpu target runs the same text")
    check_mask(PATTERNS[name](width), width, target, device)


@pytest.mark.parametrize("name", ["nothing", "everything", "the last", "half"])
@pytest.mark.parametrize("columns,last", [(1, 2), (1, 100), (31, 32), (32, 33), (32, 64), (33, 34), (64, 129), (5, 70)])
def test_masks_shorter_than_the_causal_range(target, device, columns, last, name):
    """The first tile that the mask does not speak of is kept, later ones are not."""
    row = PATTERNS[name](columns)
    assert BlockMask.reference(row, 0, last)[0] == columns
    check_mask(row, last, target, device)


@pytest.mark.parametrize("columns,last", [(2, 1), (100, 31), (100, 32), (100, 33), (64, 5)])
def test_masks_longer_than_the_causal_range(target, device, columns, last):
    """Kept tiles after the causal range are not visited."""
    check_mask(PATTERNS["everything"](columns), last, target, device)
    check_mask(PATTERNS["half"](columns), last, target, device)


@pytest.mark.parametrize("warps", [1, 4])
def test_by_producers_of_either_size(target, device, warps):
    """One warp, or the four that also transpose."""
    check_mask(PATTERNS["half"](100), 77, target, device, warps)
    check_mask(PATTERNS["sparse"](300), 300, target, device, warps)


def test_no_keys(target, device):
    check_mask(PATTERNS["everything"](4), 0, target, device)
