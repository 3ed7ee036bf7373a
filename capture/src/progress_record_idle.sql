-- Moves the processed boundary to an idle observation (A3), only while the caller owns the stream and the boundary is where the
-- caller believes it, and never past what the server has flushed (A8). Caller: ProgressWriter::record_idle.
with owner as (select from tidegate.worker where epoch = $1 for update)
update tidegate.progress p
set processed_end_lsn = $4
from owner
where p.generation = $2 and p.processed_end_lsn = $3 and $4 <= pg_current_wal_flush_lsn()
  and not exists (select from tidegate.poison where status in ('active', 'retrying')) -- A7
returning coalesce(p.acknowledged_end_lsn, (select consistent_lsn from tidegate.stream_generation g where g.id = p.generation))
