"""Losses of the training stages."""
