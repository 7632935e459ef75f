"""Getting jobs onto a cluster."""
