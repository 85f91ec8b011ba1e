"""Task records: what schedulers that plan on the GPU and the plans that own the records agree on."""

#: int32 words of a record, and the page ids that may follow them in a record of decode: one for each lane of a producer warp
RECORD, RECORD_PAGES = 8, 32
#: tasks for each slot of a decode step with much to read in many sequences: CTAs that end early take another
WAVES = 4
#: the word that holds the partial slot (-1: the sequence is not split), and its value in an idle record
SLOT_WORD, IDLE = 4, -2
#: a record of decode says how many of so many key tiles the L2 cache can keep; what its kv head is multiplied by to make room for that and another flag
EVICT_SHARES, FLAGS = 16, 128
#: the word that holds how many parts the sequence is cut into
PARTS_WORD = 6

#: query rows of a row of a block mask
QUERY_TILE = 128
#: keys of a byte of one
MASK_KEYS = 128


def most_units(rows: int, batch: int, unit_rows: int) -> int:
    """The most units of `unit_rows` that `rows` query rows can be in `batch` sequences, whatever their lengths: each sequence's last unit may hold one row."""
    return min(rows, (rows + (unit_rows - 1) * batch) // unit_rows)


def unit_capacity(rows: int, batch: int, unit_rows: int) -> int:
    """Records that a prefill planner may fill for up to `rows` query rows, beside the header."""
    return -(-rows // unit_rows) + batch
