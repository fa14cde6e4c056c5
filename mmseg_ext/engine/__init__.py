"""What the training loop lacks: hooks, optimizer constructors, schedulers."""
