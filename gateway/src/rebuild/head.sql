-- Which synced relations have rows in a scope, and where the stream stood then.
-- Caller: rebuild. Rides: s<state>_scope_row's key, once per relation.
-- $1 scope, $2 relations.
union all
select 1, null, null, null, null, null, r, null, null, null, null, null, null, null, null
from pg_catalog.unnest($2::int4[]) r
where exists (select from tidegate_projection.s{state}_scope_row e where e.scope_id = $1::int8 and e.relation_id = r)
order by kind, table_id
