-- The tail: whole source transactions after $2 with their effects, grant changes and materialized mutations, and the pending
-- mutations of all clients, in one snapshot; and marks of the transactions where the reader stood and will stand.
-- Caller: EffectLog::read_all. Rides: source_transaction's key, effect_in_order, grant_effect's key,
-- write_fence_materialized, write_fence_pending, the unique index on s<state>_scope.name_hash, subject_grant's key.
-- $1 generation, $2 after, $3 transactions, $4 effects, $5 bytes, $6 pending mutations, $7 whether to name the scopes,
-- $8 hashes of scopes to tell about, $9 hashes of subjects whose grants to tell.
, candidates as materialized (
    select commit_lsn, effect_count, row_number() over w as i,
           sum(effect_count) over w as effects, sum(effect_bytes) over w as bytes
    from (select commit_lsn, effect_count, effect_bytes from tidegate.source_transaction
          where generation = $1::int4 and commit_lsn > $2::text::pg_lsn and commit_lsn <= (select tip from anchor)
          order by commit_lsn limit $3::int8 + 1) t
    window w as (order by commit_lsn)
), chosen as materialized (
    select * from candidates where i <= $3::int8 and (i = 1 or (effects <= $4::int8 and bytes <= $5::int8))
), bounds as materialized (
    select case when complete then (select tip from anchor) else (select max(commit_lsn) from chosen) end as through,
           complete,
           -- The first transaction alone is beyond the bounds: it is read in parts instead.
           coalesce((select effect_count > $4::int8 or bytes > $5::int8 from chosen where i = 1), false) as large
    from (select (select count(*) from chosen) = (select count(*) from candidates) as complete) c
)
{anchor_row}
union all
select 1, pg_catalog.pg_lsn_send(through), case when large then 1 else 0 end, case when complete then 1 else 0 end,
       null, null, null, null, null, null, null, null, (select count(*) from chosen), null, null
from bounds
union all
select 2, pg_catalog.pg_lsn_send(e.commit_lsn), e.event_ordinal, e.effect_ordinal, e.scope_id, e.op, e.table_id, e.key, e.version,
       e.row, e.schema_version, e.digest_after, e.count_after, null, null
from bounds b, tidegate.effect e
where not b.large and e.generation = $1::int4 and e.commit_lsn > $2::text::pg_lsn and e.commit_lsn <= b.through
union all
select 3, pg_catalog.pg_lsn_send(g.commit_lsn), g.ordinal, null, null, g.op, null, null, null, null, null, null, null, g.subject, g.scope
from bounds b, tidegate.grant_effect g
where not b.large and g.generation = $1::int4 and g.commit_lsn > $2::text::pg_lsn and g.commit_lsn <= b.through
union all
select distinct 4, pg_catalog.pg_lsn_send(f.materialized_commit_lsn), f.number, null::int4, null::int8, null::int2, null::int4,
       null::bytea, f.client_id, null::bytea, null::int4, null::bytea, null::int8, f.subject, null
from bounds b, tidegate.write_fence f
where not b.large and f.generation = $1::int4
  and f.materialized_commit_lsn > $2::text::pg_lsn and f.materialized_commit_lsn <= b.through
union all
(select distinct 5, null::bytea, f.number, null::int4, null::int8, null::int2, null::int4,
       null::bytea, f.client_id, null::bytea, null::int4, null::bytea, null::int8, f.subject, null
 from tidegate.write_fence f where f.materialized_commit_lsn is null and f.covered_by is null limit $6::int8 + 1)
union all
select 6, null, null, null, s.scope_id, null, null, null, null, null, null, s.name_hash, null, null, null
from tidegate_projection.s{state}_scope s
where $7::bool and s.scope_id in (
    select e.scope_id from bounds b, tidegate.effect e
    where not b.large and e.generation = $1::int4 and e.commit_lsn > $2::text::pg_lsn and e.commit_lsn <= b.through)
union all
select 7, pg_catalog.pg_lsn_send(s.tail_commit_lsn), s.tail_event_ordinal, s.tail_effect_ordinal, s.scope_id, null, null, s.name_hash,
       null, null, null, s.digest, s.row_count, null, null
from tidegate_projection.s{state}_scope s where s.name_hash = any($8::bytea[])
union all
select 8, pg_catalog.pg_lsn_send(s.floor_commit_lsn), s.floor_event_ordinal, s.floor_effect_ordinal, s.scope_id, null, null, s.name_hash,
       null, null, null, s.floor_digest, s.floor_row_count, null, null
from tidegate_projection.s{state}_scope s where s.name_hash = any($8::bytea[]) and s.floor_commit_lsn is not null
union all
select 10, pg_catalog.pg_lsn_send(g.since_commit_lsn), null, null, null, null, null, null, null, null, null, null, null, g.subject, g.scope
from tidegate_projection.s{state}_subject_grant g where g.subject_hash = any($9::bytea[])
union all
select 11, pg_catalog.pg_lsn_send(t.commit_lsn), null, null, null, null, null, {mark}, null, null, null, null, null, null, null
from tidegate.source_transaction t
where t.generation = $1::int4 and t.commit_lsn = any(array[$2::text::pg_lsn, (select through from bounds)])
order by kind, scope, lsn, event, effect
