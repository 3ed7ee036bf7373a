-- Retention: one batch of the oldest effects, and the floors of their scopes, which move in the same transaction: whoever reads sees
-- both or neither. Of each scope a beginning goes, never a part from the middle. Scopes that a materialization is moving right now
-- are left out: nothing waits here, so nothing waits for this. Caller: Retention::batch.
-- Rides: effect_in_order, effect's key, the key of s<state>_scope.
-- $1 epoch, $2 generation, $3 from, $4 through, $5 effects.
with oldest as materialized (
    select e.scope_id, e.commit_lsn, e.event_ordinal, e.effect_ordinal
    from tidegate.effect e
    where e.generation = $2 and e.commit_lsn >= $3 and e.commit_lsn <= $4
      and exists (select from tidegate.worker w where w.epoch = $1)
    order by e.commit_lsn, e.scope_id, e.event_ordinal, e.effect_ordinal limit $5
), locked as materialized (
    select s.scope_id from tidegate_projection.s{state}_scope s
    where s.scope_id in (select o.scope_id from oldest o) for no key update of s skip locked
), removed as (
    delete from tidegate.effect e using oldest o
    where e.scope_id = o.scope_id and e.commit_lsn = o.commit_lsn and e.event_ordinal = o.event_ordinal
      and e.effect_ordinal = o.effect_ordinal and o.scope_id in (select l.scope_id from locked l)
    returning e.scope_id, e.commit_lsn, e.event_ordinal, e.effect_ordinal, e.digest_after, e.count_after
), moved as (
    update tidegate_projection.s{state}_scope s
    set floor_commit_lsn = r.commit_lsn, floor_event_ordinal = r.event_ordinal, floor_effect_ordinal = r.effect_ordinal,
        floor_row_count = r.count_after, floor_digest = r.digest_after
    from (select distinct on (scope_id) * from removed
          order by scope_id, commit_lsn desc, event_ordinal desc, effect_ordinal desc) r
    where s.scope_id = r.scope_id
), told as (
    insert into tidegate.retention as t (generation, removed_through)
    select $2, max(r.commit_lsn) from removed r having count(*) > 0
    on conflict (generation) do update set removed_through = greatest(t.removed_through, excluded.removed_through)
)
select (select count(*) from oldest) as found, (select count(*) from removed) as removed,
       (select min(o.commit_lsn) from oldest o where o.scope_id not in (select l.scope_id from locked l)) as left_out,
       (select max(o.commit_lsn) from oldest o) as reached
