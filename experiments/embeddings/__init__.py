"""Paper B's experiments: embeddings trained together with attention, on encoded texts or on K-level sequences."""
