"""The writing side: tasks stage Arrow parts beside the store, and the driver's commit appends them to the log exactly once."""
