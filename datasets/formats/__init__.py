"""Store engines, one file each."""
