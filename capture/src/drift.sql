-- What differs in the catalogs from what is registered and keeps changes from being captured rightly. Read-only. Judged by the registry
-- generation that the stream has reached: of what was registered since, the WAL alone tells (G2). Left to readiness: rights on a table,
-- and a published table that is not registered, which change nothing of what is captured.
-- Caller: drift::read, at each start of a session and periodically. Rides: catalogs and the few rows of tidegate.relation.
select f.relation, f.problem, f.of_relation, r.relation_id
from (
    select relation, problem, true from tidegate.relation_problems()
    where problem not in ('clients may write, and row-level security is off',
        'the owner of the schema tidegate may not read the table', 'row-level security applies to the owner of the schema tidegate')
    union all
    select relation, problem, false from tidegate.publication_problems()
    where problem <> 'the publication holds a table that is not registered'
    union all
    select relation, problem, false from tidegate.trigger_problems()
) f(relation, problem, of_relation)
left join tidegate.relation r on r.state <> 'removed' and format('%I.%I', r.schema_name, r.table_name) = f.relation
where r.relation_id is null or (r.resolved ->> 'since')::integer <= (select registry_generation from tidegate.progress)
