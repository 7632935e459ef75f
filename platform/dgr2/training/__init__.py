"""Train functions that Ray Train runs."""
