-- Since where each static grant of a registry generation has been in force without a gap (V7): the activation of the first generation
-- after the last one that lacked it; null: since the baseline.
-- Caller: StaticGrants::load, once per registry generation. Rides: registry_generation's and registry_activation's keys.
-- $1 registry generation, $2 stream generation.
select (g.value ->> 'grant_id')::int4 as grant_id, a.commit_lsn::text as since
from tidegate.registry_generation r
cross join lateral pg_catalog.jsonb_array_elements(r.snapshot -> 'grants') g
cross join lateral (
    select pg_catalog.max(e.id) as id from tidegate.registry_generation e
    where e.id < r.id and not e.snapshot @> pg_catalog.jsonb_build_object(
        'grants', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('grant_id', g.value -> 'grant_id')))
) lacking
left join tidegate.registry_activation a on a.stream_generation = $2
    and a.registry_generation = (select pg_catalog.min(e.id) from tidegate.registry_generation e where e.id > lacking.id)
where r.id = $1 and g.value ->> 'relation_id' is null
