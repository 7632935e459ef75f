"""What actors do and how a fleet of them behaves, said without Ray."""
