"""Long training runs: settings, the loop of epochs, checkpoints, callbacks and the options of their commands."""
