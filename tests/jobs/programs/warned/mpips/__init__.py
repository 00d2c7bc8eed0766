"""Found instead of the real package, see __main__."""
