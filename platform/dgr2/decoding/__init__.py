"""AR and block decoding, and the trajectory they record."""
