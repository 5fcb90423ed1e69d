"""Members of an ensemble, and what they predict for batches and stores."""
