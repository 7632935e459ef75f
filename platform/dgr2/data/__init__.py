"""From raw interactions to prompts and traces."""
