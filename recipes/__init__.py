"""Recipes that come with tle_attn: hy3/ (the reference family of Tencent's Hy3 model) and variants/."""
