"""What the batch scripts start beside the ranks, imitated."""
