"""Fuzzers for decoders and folders; `fuzz/run.py` is their command line."""
