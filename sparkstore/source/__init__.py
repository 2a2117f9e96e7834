"""The reading side: which stores a path names, the plan of splits, and Arrow batches for Spark's batch and stream readers."""
