"""Claims about next-token prediction by linear models, for the ledger of marginlens."""
