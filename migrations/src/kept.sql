-- Purpose: what is registered and not in the file $1, tables first. Caller: notice.rs.
select 'table' as kind, format('%I.%I', r.schema_name, r.table_name) as name,
    array(select s ->> 'name' from jsonb_array_elements(r.definition -> 'scopes') s) as scopes
from tidegate.relation r
where r.state <> 'removed' and r.kind = 'synced' and not exists (
    select from jsonb_array_elements($1 -> 'tables') e, tidegate.qualified_name(e ->> 'name', 'table') p
    where p[1] = r.schema_name and p[2] = r.table_name)
union all
select 'grant', (g.definition ->> 'scope') || coalesce(' from ' || (g.definition ->> 'from'), ''), '{}'
from tidegate.grant_rule g
where g.state = 'active' and not exists (
    select from jsonb_array_elements($1 -> 'grants') e where tidegate.normal_grant(e, 'grant') = g.definition)
order by 1 desc, 2
