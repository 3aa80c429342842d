"""The command line: each task parses flags, calls one function, prints one result."""
