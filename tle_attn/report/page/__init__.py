"""Pictures of a kernel on one page: `tle-attn explain --html`."""

from .html import page

__all__ = ["page"]
