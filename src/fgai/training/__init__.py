"""The training loop and what it needs: batches, checks, warm-started attacks and checkpoints."""
