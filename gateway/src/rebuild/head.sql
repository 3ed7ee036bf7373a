-- Which synced relations have rows in a scope, and where the stream stood then.
-- The scope is found by name in the same snapshot: the tail may not have heard of it yet, and its first rows must not be missed.
-- Caller: rebuild. Rides: s<state>_scope's unique name_hash, s<state>_scope_row's key once per relation, source_transaction's key.
-- $1 SHA-256 of the scope's name, $2 relations, $3 transaction at which a token says that its run began: a row of kind 2 if none such is here.
union all
select 1, null, null, null, null, null, r, null, null, null, null, null, null, null, null
from pg_catalog.unnest($2::int4[]) r
where exists (select from tidegate_projection.s{state}_scope_row e
              where e.scope_id = (select s.scope_id from tidegate_projection.s{state}_scope s where s.name_hash = $1::bytea)
                and e.relation_id = r)
union all
select 2, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from anchor a
where $3::text is not null and not exists (select from tidegate.source_transaction t
    where t.generation = a.generation and t.commit_lsn = $3::text::pg_lsn)
order by kind, table_id
