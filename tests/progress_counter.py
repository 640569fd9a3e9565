"""Progress for tests: a callback that remembers what it was called with last."""


class ProgressCounter:
    """Units of work that were done, of how many."""

    def __init__(self):
        self.total, self.done = 0, 0

    def __call__(self, done, total):
        self.done, self.total = done, total
