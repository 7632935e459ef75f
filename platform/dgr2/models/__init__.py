"""Backbone, block grid, attention mask and alignment."""
