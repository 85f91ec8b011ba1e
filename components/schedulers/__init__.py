"""Schedulers: which CTA works on which keys of which sequence."""
