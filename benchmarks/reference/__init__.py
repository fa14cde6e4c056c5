"""The plain formulations, written from the papers' equations."""

from torch import nn


class Plain(nn.Module):
    """The function of `layer` by its equations, with its parameters and norms."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
