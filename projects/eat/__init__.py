"""PCT with external attention in place of offset self-attention."""
