"""A trained student behind HTTP: requests in, permutations out."""
