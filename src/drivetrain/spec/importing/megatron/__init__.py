"""Megatron-LM's arguments as recipes."""
