"""Several models speaking as one."""
