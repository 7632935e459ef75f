"""One file a job, and the command line."""
