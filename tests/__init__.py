"""The tests of mpips, and in `bench` the measurements that only developers of mpips run."""
