"""Speech: networks that take noise away."""
