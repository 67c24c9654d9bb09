"""Lets torchvision and timm import where torchvision's compiled operators do not fit this torch."""

from vitlab.inference.torchvision_ops import declare as declare
