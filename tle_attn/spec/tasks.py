"""Task records: what schedulers that plan on the GPU and the plans that own the records agree on."""

#: int32 words of a record
RECORD = 8
#: the word that holds the partial slot (-1: the sequence is not split), and its value in an idle record
SLOT_WORD, IDLE = 4, -2

#: query rows of a prefill unit: a tile of one sequence's queries, for one query head
QUERY_TILE = 128


def most_units(rows: int, batch: int) -> int:
    """The most tiles that `rows` query rows can be in `batch` sequences, whatever their lengths: each sequence's last tile may hold one row."""
    return min(rows, (rows + (QUERY_TILE - 1) * batch) // QUERY_TILE)


def unit_capacity(rows: int, batch: int) -> int:
    """Records that a prefill planner may fill for up to `rows` query rows, beside the header."""
    return -(-rows // QUERY_TILE) + batch
