"""Linear equations without rounding."""

from fractions import Fraction


def solved_over_fractions(square: list[list[Fraction]]) -> list[Fraction] | None:
    """The solution of square y = 1; None where it is singular."""
    table = [[*row, Fraction(1)] for row in square]
    for k, _ in enumerate(table):
        pivot = next((r for r in range(k, len(table)) if table[r][k] != 0), None)
        if pivot is None:
            return None
        table[k], table[pivot] = table[pivot], table[k]
        table[k] = [value / table[k][k] for value in table[k]]
        for r, row in enumerate(table):
            if r != k:
                table[r] = [value - row[k] * other for value, other in zip(row, table[k], strict=True)]
    return [row[-1] for row in table]
