"""Tables of embeddings: rows are pulled once a step, and their gradients pushed once to who holds them."""
