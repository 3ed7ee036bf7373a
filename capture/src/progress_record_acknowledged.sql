-- Records an acknowledgement that was read back from the slot (A4), never past the processed boundary (A5), never backwards.
-- Caller: ProgressWriter::record_acknowledged.
with owner as (select from tidegate.worker where epoch = $1 for update)
update tidegate.progress p
set acknowledged_end_lsn = $3
from owner
where p.generation = $2 and $3 <= p.processed_end_lsn and (p.acknowledged_end_lsn is null or p.acknowledged_end_lsn <= $3)
