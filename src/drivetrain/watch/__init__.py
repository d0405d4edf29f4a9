"""Sinks that replay the ledger: console, TensorBoard. Never imports torch."""
