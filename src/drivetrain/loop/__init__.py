"""When things happen: the step contract, evaluation, exits."""
