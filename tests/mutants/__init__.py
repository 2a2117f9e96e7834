"""Mutation tests of the code that writes and recovers: `make mutants`."""
