-- One scope: what it is now, how it stood before ($3, $4, $5), and its effects at and after that through $6.
-- Caller: EffectLog::read_scope. Rides: effect's primary key, both ways.
-- $1 generation, $2 scope, $3 from commit position, $4 event, $5 effect, $6 through, $7 rows, $8 bytes, $9 replay count's limit.
, candidates as materialized (
    select t.*, row_number() over w as i,
           sum(pg_catalog.octet_length(key) + coalesce(pg_catalog.octet_length(row), 0) + 64) over w as bytes
    from (select e.* from tidegate.effect e
          where e.scope_id = $2::int8
            and (e.commit_lsn, e.event_ordinal, e.effect_ordinal) >= ($3::text::pg_lsn, $4::int8, $5::int4)
            and e.commit_lsn <= $6::text::pg_lsn and e.generation = $1::int4
          order by e.commit_lsn, e.event_ordinal, e.effect_ordinal limit $7::int8 + 1) t
    window w as (order by commit_lsn, event_ordinal, effect_ordinal)
), chosen as materialized (
    select * from candidates where i <= $7::int8 and (i = 1 or bytes <= $8::int8)
)
{anchor_row}
union all
select 1, null, (select count(*) from (select from tidegate.effect e
                 where e.scope_id = $2::int8 and e.generation = $1::int4
                   and (e.commit_lsn, e.event_ordinal, e.effect_ordinal) >= ($3::text::pg_lsn, $4::int8, $5::int4)
                   and e.commit_lsn <= $6::text::pg_lsn limit $9::int8) r),
       case when (select count(*) from chosen) = (select count(*) from candidates) then 1 else 0 end,
       -- Whether the first row left out belongs to the transaction of the last one chosen.
       case when (select max(commit_lsn) from chosen)
                 = (select commit_lsn from candidates c where c.i = (select count(*) + 1 from chosen)) then 1 else 0 end,
       null, null, null, null, null, null, null, null, null, null
union all
select 2, pg_catalog.pg_lsn_send(e.commit_lsn), e.event_ordinal, e.effect_ordinal, e.scope_id, e.op, e.table_id, e.key, e.version,
       e.row, e.schema_version, e.digest_after, e.count_after, null, null
from chosen e
union all
select 7, pg_catalog.pg_lsn_send(s.tail_commit_lsn), s.tail_event_ordinal, s.tail_effect_ordinal, s.scope_id, null, null, s.name_hash,
       null, null, null, s.digest, s.row_count, null, null
from tidegate_projection.s{state}_scope s where s.scope_id = $2::int8
union all
select 8, pg_catalog.pg_lsn_send(s.floor_commit_lsn), s.floor_event_ordinal, s.floor_effect_ordinal, s.scope_id, null, null, s.name_hash,
       null, null, null, s.floor_digest, s.floor_row_count, null, null
from tidegate_projection.s{state}_scope s where s.scope_id = $2::int8 and s.floor_commit_lsn is not null
union all
(select 9, pg_catalog.pg_lsn_send(e.commit_lsn), e.event_ordinal, e.effect_ordinal, e.scope_id, null, null, null,
       null, null, null, e.digest_after, e.count_after, null, null
 from tidegate.effect e
 where e.scope_id = $2::int8 and e.generation = $1::int4
   and (e.commit_lsn, e.event_ordinal, e.effect_ordinal) < ($3::text::pg_lsn, $4::int8, $5::int4)
 order by e.commit_lsn desc, e.event_ordinal desc, e.effect_ordinal desc limit 1)
order by kind, scope, lsn, event, effect
