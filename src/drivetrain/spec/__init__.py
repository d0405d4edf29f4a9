"""What is asked for: recipes, their mistakes, the provenance of every value. Never imports torch."""
