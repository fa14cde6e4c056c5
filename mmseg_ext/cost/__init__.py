"""Parameters, multiply-adds, time and memory of blocks and configs."""
