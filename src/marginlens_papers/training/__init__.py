"""Long training runs: settings, the loop of epochs, checkpoints, callbacks, scripts and archived results."""
