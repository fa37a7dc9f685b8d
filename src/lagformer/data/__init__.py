"""Recordings in, one validated ``Collection`` out; the audit and the augmentations."""
