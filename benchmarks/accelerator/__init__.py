"""Everything that needs a device, as one command: `python -m accelerator`, or `make accelerator`."""
