"""Decode as torch operators: schemas, checks that choose the plan, launches, and what a compiler needs to know of the results.

`tle_attn::attention_decode_bf16` and `_fp8` return a new tensor; their `_out` forms write into one.  `tle_attn::plan_decode_tasks` fills a task map.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, InputTypeError
from ..runtime.decode import RECORD
from ..spec.problem import at_least
from ..errors import SpecError
from . import plans
from .emulation import target_of

_INPUTS = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_ids, Tensor kv_lens"
_SCALES = "Tensor q_scale, Tensor k_scale, Tensor v_scale"
_OPTIONS = "int query_tokens=1, bool new_kv_included=True, bool split=True, float? softmax_scale=None, Tensor? tasks=None"
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
TILE = 64
