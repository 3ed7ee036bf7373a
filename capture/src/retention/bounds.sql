-- Retention: the newest source transaction whose effects may go, and how many bytes of effects are younger than what was counted.
-- Transactions go in commit order, so the first one that must stay ends the walk: it is not acknowledged, younger than the minimum,
-- or neither too old nor in excess. Caller: Retention::bounds. Rides: source_transaction's key, as far as transactions go.
-- $1 epoch, $2 generation, $3 seconds that effects are kept, $4 seconds that they are kept at least, $5 bytes beyond what may be
-- kept, $6 counted through.
with owner as materialized (
    select p.materialized_commit_lsn as tip, coalesce(p.acknowledged_end_lsn, '0/0') as acknowledged
    from tidegate.progress p where p.generation = $2 and exists (select from tidegate.worker w where w.epoch = $1)
), first_kept as materialized (
    select t.commit_lsn
    from (select s.commit_lsn, s.end_lsn, s.committed_at, sum(s.effect_bytes) over (order by s.commit_lsn) - s.effect_bytes as before
          from tidegate.source_transaction s where s.generation = $2 order by s.commit_lsn) t
    where t.end_lsn > (select acknowledged from owner)
       or t.committed_at >= clock_timestamp() - make_interval(secs => $4)
       or (t.committed_at >= clock_timestamp() - make_interval(secs => $3) and t.before >= $5)
    order by t.commit_lsn limit 1
)
select o.tip,
       case when exists (select from first_kept)
            then (select max(s.commit_lsn) from tidegate.source_transaction s
                  where s.generation = $2 and s.commit_lsn < (select f.commit_lsn from first_kept f))
            else o.tip end as through,
       (select coalesce(sum(s.effect_bytes), 0)::int8 from tidegate.source_transaction s
        where s.generation = $2 and s.commit_lsn > $6 and s.commit_lsn <= o.tip) as new_bytes
from owner o
