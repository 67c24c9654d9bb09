"""How many images and steps, unless told otherwise; imports nothing."""

SHOWN, MOST = 16, 32
"""Pictures of a figure: usually, and at most."""
TESTED, STEPS = 100, 14
"""Pictures of a test of maps, and the portions in which patches go."""
LONGEST = 640
"""Pixels of a picture's longer side in a figure."""
