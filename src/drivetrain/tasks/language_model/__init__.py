"""Language modelling on token sources."""
