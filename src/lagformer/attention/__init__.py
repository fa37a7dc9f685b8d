"""The attention mathematics: dense definitions, feature maps, linear-time forms and modules."""
