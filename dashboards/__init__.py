"""Grafana dashboard, Prometheus configuration and alert rules, made from the table of metrics."""
