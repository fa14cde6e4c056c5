"""SAGAN with external attention in place of self-attention."""
