-- One beat, only while the caller's worker owns the stream, by whichever of its claims; `since` moves when state or reason does, and while retrying only
-- with the state: each try may fail for another reason, and readiness counts the whole of it (Q4). Caller: heartbeat::Beats::beat.
insert into tidegate.worker_heartbeat as h
    (epoch, beat_at, state, reason, since, processed_end_lsn, materialized_commit_lsn, registry_generation, oldest_pending_commit_at)
select w.epoch, clock_timestamp(), $2::text, $3::text, clock_timestamp(), $4, $5, $6::int4,
       timestamptz '2000-01-01 00:00:00+00' + $7::int8 * interval '1 microsecond'
from tidegate.worker w
where w.worker_id = $1
on conflict (singleton) do update
set epoch = excluded.epoch, beat_at = excluded.beat_at, state = excluded.state, reason = excluded.reason,
    since = case when h.state = excluded.state and (h.state = 'retrying' or h.reason is not distinct from excluded.reason) then h.since else excluded.since end,
    processed_end_lsn = excluded.processed_end_lsn, materialized_commit_lsn = excluded.materialized_commit_lsn,
    registry_generation = excluded.registry_generation, oldest_pending_commit_at = excluded.oldest_pending_commit_at
