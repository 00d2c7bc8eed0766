"""`mpips bench`: how fast mpips is here, beside what it could be.

Every figure stands next to a baseline that was measured in the same run, turn by turn, and the result is
the ratio of the two: machines differ and are noisy, ratios are not.
"""
