"""Speech: networks that take noise away, copy speech, and make clean speech of noisy."""
