"""Lets torchvision and timm import where torchvision's compiled operators do not fit this torch."""

from vitlab.jobs.benchmark.peers import declare as declare
