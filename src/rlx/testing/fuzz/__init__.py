"""The fuzzer: `python -m rlx.testing.fuzz`, or `scripts/fuzz`. See `__main__`."""
