"""Task records: what schedulers that plan on the GPU and the plans that own the records agree on."""

#: int32 words of a record
RECORD = 8
#: the word that holds the partial slot (-1: the sequence is not split), and its value in an idle record
SLOT_WORD, IDLE = 4, -2
