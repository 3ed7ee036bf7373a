-- One part of a source transaction that is too large to be read whole, in order of scope, event and effect, after ($3, $4, $5).
-- Its grant changes come with the first part: removals take effect before its pages (V7). Its mutations come with the last.
-- Caller: EffectLog::read_all. Rides: effect_in_order, so that a part costs what it brings.
-- $1 generation, $2 commit position, $3 scope, $4 event, $5 effect, $6 rows, $7 bytes, $8 pending mutations, $9 whether to
-- name the scopes, $10 the transaction before.
, candidates as materialized (
    select t.*, row_number() over w as i,
           sum(pg_catalog.octet_length(key) + coalesce(pg_catalog.octet_length(row), 0) + 64) over w as bytes
    from (select e.* from tidegate.effect e
          where e.generation = $1::int4 and e.commit_lsn = $2::text::pg_lsn
            and (e.scope_id, e.event_ordinal, e.effect_ordinal) > ($3::int8, $4::int8, $5::int4)
          order by e.scope_id, e.event_ordinal, e.effect_ordinal limit $6::int8 + 1) t
    window w as (order by scope_id, event_ordinal, effect_ordinal)
), chosen as materialized (
    select * from candidates where i <= $6::int8 and (i = 1 or bytes <= $7::int8)
), bounds as materialized (
    select (select count(*) from chosen) = (select count(*) from candidates) as complete,
           (select scope_id from candidates c where c.i = (select count(*) + 1 from chosen)) as continues
)
{anchor_row}
union all
select 1, pg_catalog.pg_lsn_send($2::text::pg_lsn), null, case when complete then 1 else 0 end,
       continues, null, null, null, null, null, null, null, null, null, null
from bounds
union all
select 2, pg_catalog.pg_lsn_send(e.commit_lsn), e.event_ordinal, e.effect_ordinal, e.scope_id, e.op, e.table_id, e.key, e.version,
       e.row, e.schema_version, e.digest_after, e.count_after, null, null
from chosen e
union all
select 3, pg_catalog.pg_lsn_send(g.commit_lsn), g.ordinal, null, null, g.op, null, null, null, null, null, null, null, g.subject, g.scope
from tidegate.grant_effect g
where $3::int8 = {first_scope} and g.generation = $1::int4 and g.commit_lsn = $2::text::pg_lsn
union all
select distinct 4, pg_catalog.pg_lsn_send(f.materialized_commit_lsn), f.number, null::int4, null::int8, null::int2, null::int4,
       null::bytea, f.client_id, null::bytea, null::int4, null::bytea, null::int8, f.subject, null
from bounds b, tidegate.write_fence f
where b.complete and f.generation = $1::int4 and f.materialized_commit_lsn = $2::text::pg_lsn
union all
(select distinct 5, null::bytea, f.number, null::int4, null::int8, null::int2, null::int4,
       null::bytea, f.client_id, null::bytea, null::int4, null::bytea, null::int8, f.subject, null
 from tidegate.write_fence f where f.materialized_commit_lsn is null and f.covered_by is null limit $8::int8 + 1)
union all
select 6, null, null, null, s.scope_id, null, null, null, null, null, null, s.name_hash, null, null, null
from tidegate_projection.s{state}_scope s
where $9::bool and s.scope_id in (select scope_id from chosen)
union all
select 11, pg_catalog.pg_lsn_send(t.commit_lsn), null, null, null, null, null, {mark}, null, null, null, null, null, null, null
from tidegate.source_transaction t
where t.generation = $1::int4 and t.commit_lsn = any(array[$2::text::pg_lsn, $10::text::pg_lsn])
order by kind, scope, lsn, event, effect
