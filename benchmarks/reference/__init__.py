"""The plain formulations, written from the papers' equations."""
