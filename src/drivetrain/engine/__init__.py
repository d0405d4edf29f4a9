"""A network made trainable: precision, accumulation, reduction, clipping, the finite vote."""
