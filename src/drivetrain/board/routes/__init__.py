"""What the board answers: thin, each asks what lies beside and says it as JSON."""
