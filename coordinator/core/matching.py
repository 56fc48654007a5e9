"""Cheapest assignment of rows to columns: the Hungarian method with potentials.

O(rows² · columns) at worst; a row whose cheapest column is free costs one pass over the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

UNFIT = 10**9  # cost of a pair that may not be
_NONE_YET = 1 << 62


def assign(costs: Sequence[Sequence[int]]) -> list[int | None]:
    """For each row its column, such that as many rows as possible get one, at the least cost.

    `costs[row][column]` is UNFIT where the pair may not be; all others are small and not negative.
    A row gets None where no assignment has a place for it. Ties go to the lower column.
    """
    rows = len(costs)
    real = len(costs[0]) if rows else 0
    width = real + rows  # one column of nowhere per row, at the price of UNFIT
    row_price = [0] * (rows + 1)
    price = [0] * (width + 1)
    owner = [0] * (width + 1)  # row (from 1) that has the column; 0: free
    for row in range(1, rows + 1):
        _add_row(row, costs, real, row_price, price, owner)
    placed: list[int | None] = [None] * rows
    for column in range(1, real + 1):
        row = owner[column]
        if row and costs[row - 1][column - 1] < UNFIT:
            placed[row - 1] = column - 1
    return placed


def _add_row(
    row: int,
    costs: Sequence[Sequence[int]],
    real: int,
    row_price: list[int],
    price: list[int],
    owner: list[int],
) -> None:
    """Give one more row a column, moving earlier rows along the cheapest path (Dijkstra)."""
    width = len(owner) - 1
    slack = [_NONE_YET] * (width + 1)
    came_from = [0] * (width + 1)
    used = [False] * (width + 1)
    owner[0] = row
    column = 0
    while owner[column]:
        used[column] = True
        at = owner[column]
        cost_row = costs[at - 1]
        base = row_price[at]
        best, nearest = _NONE_YET, 0
        for other in range(1, width + 1):
            if used[other]:
                continue
            cost = cost_row[other - 1] if other <= real else UNFIT
            reduced = cost - base - price[other]
            if reduced < slack[other]:
                slack[other] = reduced
                came_from[other] = column
            if slack[other] < best:
                best, nearest = slack[other], other
        for other in range(width + 1):
            if used[other]:
                row_price[owner[other]] += best
                price[other] -= best
            else:
                slack[other] -= best
        column = nearest
    while column:
        before = came_from[column]
        owner[column] = owner[before]
        column = before
