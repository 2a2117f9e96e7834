"""Fuzzers: what is done to bytes from strangers, and with which bytes.  See `fuzz/run.py`."""
