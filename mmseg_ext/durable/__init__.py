"""Training runs that can be killed at any moment and resume bit-exactly."""
