"""Image files: pixels as they declare them, finding and reading them, and pictures to look at."""
