-- A key range of one relation's rows in a scope, from the projection, and where the stream stood then (R7).
-- Caller: rebuild. Rides: s<state>_scope_row's key, then the projection's.
-- $1 SHA-256 of the scope's name, $2 key index to begin after, $3 rows, $4 bytes.
, candidates as materialized (
    select t.*, row_number() over w as i, sum(pg_catalog.octet_length(row) + 64) over w as bytes
    from (select e.key_index, p.version, p.row
          from tidegate_projection.s{state}_scope_row e
          join tidegate_projection.s{state}_p{relation} p on p.key_index = e.key_index
          where e.scope_id = (select s.scope_id from tidegate_projection.s{state}_scope s where s.name_hash = $1::bytea)
            and e.relation_id = {relation} and e.key_index > $2::bytea
          order by e.key_index limit $3::int8 + 1) t
    window w as (order by key_index)
), chosen as materialized (
    select * from candidates where i <= $3::int8 and (i = 1 or bytes <= $4::int8)
)
{anchor_row}
union all
select 1, null, null, case when (select count(*) from chosen) = (select count(*) from candidates) then 1 else 0 end,
       null, null, null, null, null, null, null, null, null, null, null
union all
select 2, null, null, null, null, null, null, key_index, version, row, null, null, null, null, null from chosen
order by kind, key
