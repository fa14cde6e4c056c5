"""Parameters, multiply-adds and memory of blocks and configs."""
