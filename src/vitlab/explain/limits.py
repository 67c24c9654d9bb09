"""Default numbers of images and steps; imports nothing."""

SHOWN, MOST = 16, 32
"""Images in a figure: by default, and at most."""
TESTED, STEPS = 100, 14
"""Images in a test of maps, and the number of steps in which patches are removed."""
LONGEST = 640
"""Pixels of an image's longer side in a figure."""
