"""Long training runs: settings, interruptions, checkpoints, scripts and kept results, whatever it is that is trained."""
