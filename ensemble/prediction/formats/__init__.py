"""Files of predictions, one class per format."""
