"""The imitated package, which is imported instead of the real one; see __main__."""
