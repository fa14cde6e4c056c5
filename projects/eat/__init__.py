"""PCT with external attention instead of offset self-attention."""
