"""Dashboards, alerts and the run viewer."""
