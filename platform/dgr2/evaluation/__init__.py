"""Metrics, intervals, validity, speed and the report."""
