-- Retention: the records of transactions whose effects are gone, and their grant changes. The newest of them stays: a gateway may
-- stand there, and recognises by it that the history is the same. Caller: Retention::ledger.
-- Rides: source_transaction's key, grant_effect's key.
-- $1 epoch, $2 generation, $3 through, $4 records.
with old as materialized (
    select s.commit_lsn, s.effect_bytes from tidegate.source_transaction s
    where s.generation = $2 and s.commit_lsn < $3 and exists (select from tidegate.worker w where w.epoch = $1)
    order by s.commit_lsn limit $4
), grants as (
    delete from tidegate.grant_effect g
    where g.generation = $2 and g.commit_lsn in (select o.commit_lsn from old o)
), gone as (
    delete from tidegate.source_transaction s
    where s.generation = $2 and s.commit_lsn in (select o.commit_lsn from old o)
    returning s.effect_bytes
)
select count(*) as removed, coalesce(sum(effect_bytes), 0)::int8 as bytes from gone
