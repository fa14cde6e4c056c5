"""Cost, attention maps, similarity: the numbers and the pictures."""
