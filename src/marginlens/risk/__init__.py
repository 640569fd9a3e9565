"""Training risks: value, exact gradient, selected tokens and margin rows."""
