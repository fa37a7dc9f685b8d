"""What every query sees of a full table of lags, as the fused pass sums it, group by group.

With a batch, S needs no skewing: with time running backwards along the keys, the lags of query i
are rows i, i+1, … of the table read backwards, an overlapping view of it, and one product a query,
batch × lags, makes use of all of it. Few rows, and FFTs, go through lag_form.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagformer.attention import lag_form
from lagformer.attention.lag_form import A, G, R, V

# Queries in a block, and rows of a batch that make a product per query worth while.
BLOCK = 64
ENOUGH_ROWS = 8
# Numbers a step works on, to stay in a core's own cache.
CACHED = 2**18


class LagWindows:
    """Tables (G, T+S-1, l) for the lags 1-T … S-1: sums over them, and their gradients."""

    quick = False  # the sums cost so little that making features anew would be felt
    per_row = 0  # if quick, the scores a row of a tile holds at a time

    def __init__(self, table: Tensor, T: int, S: int, method: str) -> None:
        self.table, self.sizes, self.method = table, lag_form.Sizes(T, S, T - 1, S - 1), method
        # The table is small: float64 makes differences of its sums exact (there is none on MPS).
        self._wide = table.dtype if table.device.type == "mps" else torch.float64
        running = F.pad(table.cumsum(1, dtype=self._wide), (0, 0, 1, 0))
        window = running[:, S:] - running[:, :T]  # of the last query, …, of the first
        self.sums = window.flip(1).to(table.dtype)  # s (G, T, l)
        self.d_sums = torch.zeros_like(self.sums)
        self._d_table = torch.zeros_like(table)

    @classmethod
    def of(cls, table: Tensor, T: int, S: int, *, n_rows: int, method: str) -> LagWindows:
        """The quickest for these sizes."""
        if method == "block" and n_rows >= ENOUGH_ROWS:
            return _BatchedWindows(table, T, S, method)
        return cls(table, T, S, method)

    def add_numerator(self, num: Tensor, group: int, queries: Tensor, values: Tensor) -> None:
        """Add Σ_j (φ(q_i)ᵀφ(r_{j-i})) v_j to num (B, T, c)."""
        num += self._derivatives([G], group, queries, values, queries)[G][0]

    def add_gradients(
        self,
        d_queries: Tensor,
        d_values: Tensor,
        group: int,
        queries: Tensor,
        values: Tensor,
        g_num: Tensor,
    ) -> None:
        """Add what the numerator's gradient is for queries and values, and keep the table's."""
        found = self._derivatives([A, R, V], group, queries, values, g_num)
        d_queries += found[A][0]
        d_values += found[V][0]
        self._d_table[group] += found[R][0]

    def d_table(self) -> Tensor:
        """The table's gradient (G, T+S-1, l), that of the window sums included."""
        T, S = self.sizes.T, self.sizes.S
        for d_sums, d_table in zip(self.d_sums, self._d_table, strict=True):
            # A row is in the windows of the queries whose distance from it is 0 … S-1.
            running = F.pad(d_sums.flip(0).cumsum(0, dtype=self._wide), (0, 0, 1, 0))
            until = torch.cat([running[1:], running[-1:].expand(S - 1, -1)])
            until[S:] -= running[1:T]
            d_table += until.to(d_table.dtype)
        return self._d_table

    def _derivatives(
        self, wanted: list[int], group: int, a: Tensor, v: Tensor, g: Tensor
    ) -> dict[int, Tensor]:
        args = (a.unsqueeze(0), self.table[group : group + 1], v.unsqueeze(0), g.unsqueeze(0))
        return lag_form.derivatives(args, wanted, self.sizes, self.method)


class _BatchedWindows(LagWindows):
    """One product a query, batch × lags."""

    quick = True

    def __init__(self, table: Tensor, T: int, S: int, method: str) -> None:
        super().__init__(table, T, S, method)
        self._rows = table.flip(1)
        # A view's gradient (n, S, l) is to stay in the cache as well.
        n = max(1, min(BLOCK, T, CACHED // (S * max(table.shape[-1], ENOUGH_ROWS))))
        n = -(-T // -(-T // n))  # equal blocks
        self._blocks = [slice(t, min(t + n, T)) for t in range(0, T, n)]
        self.per_row = n * S
        self._scores = table.new_empty(0)
        # Rows of d_lags (S, l) and as many zeros as a block has queries.
        self._d_lags = table.new_zeros(n, S + n, table.shape[-1])

    def _view(self, group: int, block: slice) -> Tensor:
        """(n, S, l): row i, column s is the lag of query i and the s-th key from the end."""
        rows = self._rows[group]
        l = rows.shape[-1]
        start = rows.storage_offset() + block.start * l
        return rows.as_strided((block.stop - block.start, self.sizes.S, l), (l, l, 1), start)

    def _buffer(self, *shape: int) -> Tensor:
        """The same memory every time: it is in the cache already."""
        if self._scores.shape != shape:
            self._scores = self._scores.new_empty(shape)
        return self._scores

    def add_numerator(self, num: Tensor, group: int, queries: Tensor, values: Tensor) -> None:
        values = values.flip(1)
        for block in self._blocks:
            lags, at = self._view(group, block), queries[:, block].transpose(0, 1)
            scores = self._buffer(len(lags), len(values), self.sizes.S)
            torch.bmm(at, lags.transpose(1, 2), out=scores)
            num[:, block] += torch.bmm(scores.transpose(0, 1), values)

    def add_gradients(
        self,
        d_queries: Tensor,
        d_values: Tensor,
        group: int,
        queries: Tensor,
        values: Tensor,
        g_num: Tensor,
    ) -> None:
        S = self.sizes.S
        values = values.flip(1)
        back = torch.zeros_like(values)
        for block in self._blocks:
            lags, at = self._view(group, block), queries[:, block].transpose(0, 1)
            g = g_num[:, block]
            n, rows = len(lags), len(values)
            scores = self._buffer(n, rows, S)
            torch.bmm(at, lags.transpose(1, 2), out=scores)
            back.baddbmm_(scores.permute(1, 2, 0), g)
            by_row = scores.view(rows, n, S)  # the scores have served: their gradient's place
            d_scores = torch.bmm(g, values.transpose(1, 2), out=by_row).transpose(0, 1)
            d_queries[:, block] += torch.bmm(d_scores, lags).transpose(0, 1)
            torch.bmm(d_scores.transpose(1, 2), at, out=self._d_lags[:n, :S])
            # Read a lag shorter than they are, rows move on: row i by i lags.
            width, l = self._d_lags.shape[1:]
            askew = self._d_lags.as_strided((n, S + n - 1, l), ((width - 1) * l, l, 1))
            stop = self._d_table.shape[1] - block.start
            self._d_table[group, stop - (S + n - 1) : stop] += askew.sum(dim=0).flip(0)
        d_values += back.flip(1)
