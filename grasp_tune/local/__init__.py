"""The in-process body: the search and its workers on this machine."""
