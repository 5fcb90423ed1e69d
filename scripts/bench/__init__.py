"""What ``hydragnn bench`` measures on this machine; its baselines are this package's own, or plain torch."""
