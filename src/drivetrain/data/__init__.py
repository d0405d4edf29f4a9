"""Sources, order, batches: everything by position."""
