-- Purpose: what is registered, and what is lost with the log. Only where the tables are there. Caller: uninstall/plan.rs.
select
    (select count(*) from tidegate.relation r where r.state <> 'removed' and r.kind = 'synced') as synced,
    (select count(*) from tidegate.relation r where r.state <> 'removed' and r.kind <> 'synced') as dependencies,
    (select count(*) from tidegate.grant_rule g where g.state = 'active') as grants,
    -- A large log is not read for a number: the planner's own will do.
    (case when c.reltuples > 1000000 then c.reltuples::int8 else (select count(*) from tidegate.effect) end) as effects,
    c.reltuples > 1000000 as effects_estimated,
    (select count(distinct w.mutation_id) from tidegate.write_fence w
        where w.materialized_commit_lsn is null and w.covered_by is null) as unmaterialized,
    (select count(*) from tidegate.client) as clients,
    -- H3: as readiness judges it, for whoever may not see the worker's sessions.
    (select extract(epoch from clock_timestamp() - h.beat_at)::float8 from tidegate.worker_heartbeat h
        where h.state <> 'stopped' and h.beat_at > clock_timestamp() - interval '15 seconds') as beat_age
from pg_class c where c.oid = 'tidegate.effect'::regclass
