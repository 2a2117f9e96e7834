"""Benchmarks: ratios against `baseline.py`, measured in one run.

`pytest bench --benchmark-only` measures and prints the table; `--benchmark-json=FILE` saves it.  With `--benchmark-disable`
each benchmark runs once on a few records, as a plain test.
"""
