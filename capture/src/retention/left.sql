-- Retention: what earlier generations have left. No cursor of theirs is good any more (P3), so no floor moves.
-- Caller: Retention::left. Rides: the keys of source_transaction and grant_effect, effect_in_order.
-- $1 epoch, $2 generation, $3 rows.
with owner as materialized (
    select from tidegate.worker w where w.epoch = $1
), effects as (
    delete from tidegate.effect e
    where e.ctid in (select o.ctid from tidegate.effect o where o.generation < $2 and exists (select from owner) limit $3)
    returning 1
), grants as (
    delete from tidegate.grant_effect g
    where g.ctid in (select o.ctid from tidegate.grant_effect o where o.generation < $2 and exists (select from owner) limit $3)
    returning 1
), records as (
    delete from tidegate.source_transaction s
    where s.ctid in (select o.ctid from tidegate.source_transaction o where o.generation < $2 and exists (select from owner) limit $3)
    returning 1
)
select (select count(*) from effects) + (select count(*) from grants) + (select count(*) from records) as removed
