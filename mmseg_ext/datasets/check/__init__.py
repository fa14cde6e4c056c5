"""Finding what training would trip over, before it starts."""
