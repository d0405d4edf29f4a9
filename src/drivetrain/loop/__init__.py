"""When things happen: the order of a step, evaluation, exits."""
