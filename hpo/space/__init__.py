"""The search space: its parameters, its points, and the space that ships."""
