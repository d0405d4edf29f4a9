"""TorchEasyRec's pipeline configurations."""
