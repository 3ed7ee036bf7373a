-- Records a blocking failure, or one more attempt on the same transaction; a failed retry makes it active again (Q1–Q3).
-- Caller: poison::record. Rides: poison_one_blocking.
insert into tidegate.poison as p
    (generation, commit_lsn, end_lsn, failure_class, explanation, sqlstate, relation_id, retryable)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict ((true)) where status in ('active', 'retrying') do update
set generation = excluded.generation, commit_lsn = excluded.commit_lsn, end_lsn = excluded.end_lsn,
    failure_class = excluded.failure_class, explanation = excluded.explanation, sqlstate = excluded.sqlstate,
    relation_id = excluded.relation_id, retryable = excluded.retryable,
    attempts = case when p.generation = excluded.generation and p.commit_lsn = excluded.commit_lsn then p.attempts + 1 else 1 end,
    last_at = clock_timestamp(), status = 'active'
returning id
