"""Repair a folder that nobody has open: `check` verifies it, `recover` plans and executes repairs."""
