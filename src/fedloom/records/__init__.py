"""What a run leaves behind: records, checkpoints, a manifest."""
