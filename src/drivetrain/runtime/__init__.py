"""One process among many: its place, process groups, seeds, pulse and signals."""
