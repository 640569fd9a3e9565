"""Progress for tests: it counts what it is told."""


class ProgressCounter:
    """Units of work that were announced and done."""

    def __init__(self):
        self.total, self.done = 0, 0

    def expect(self, total):
        self.total = total

    def advance(self, units=1):
        self.done += units
