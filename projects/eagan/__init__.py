"""SAGAN with external attention instead of self-attention."""
