"""Ray actors: thin shells over the library."""
