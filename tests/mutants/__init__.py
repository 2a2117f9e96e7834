"""A mutation run over the code that writes and recovers: `make mutants`."""
