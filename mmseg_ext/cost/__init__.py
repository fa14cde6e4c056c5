"""Parameters and multiply-adds of blocks and configs."""
