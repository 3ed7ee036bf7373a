-- Purpose: everything of ours in this database that an uninstall removes, as of one statement; always one row. Reads catalogues alone,
-- so that it is right whatever of the schema is there. Caller: uninstall/plan.rs.
select
    n.oid is not null as schema,
    exists (select from pg_proc p where p.pronamespace = n.oid and p.proname = 'uninstall' and p.pronargs = 0) as function,
    (select count(*) = 6 from pg_class c where c.relnamespace = n.oid
        and c.relname in ('relation', 'grant_rule', 'effect', 'write_fence', 'client', 'worker_heartbeat')) as tables,
    array(select n.nspname::text from pg_namespace n where n.nspname in ('tidegate', 'tidegate_projection') order by 1) as schemas,
    (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('tidegate', 'tidegate_projection') and c.relkind in ('r', 'S')) as bytes,
    exists (select from pg_publication where pubname = 'tidegate') as publication,
    -- As check/facts.sql knows them.
    (select coalesce(jsonb_agg(jsonb_build_object('name', s.slot_name, 'active_pid', s.active_pid, 'reader', a.application_name) order by s.slot_name), '[]')
        from pg_replication_slots s left join pg_stat_activity a on a.pid = s.active_pid
        where s.database = current_database() and s.plugin = 'pgoutput' and s.slot_name ~ '^tidegate_[0-9a-f]{8}$') as slots,
    (select coalesce(jsonb_agg(jsonb_build_object('name', t.shown, 'triggers', t.names) order by t.shown), '[]')
        from (select format('%I.%I', n.nspname, c.relname) as shown, array_agg(g.tgname order by g.tgname) as names
              from pg_trigger g join pg_class c on c.oid = g.tgrelid join pg_namespace n on n.oid = c.relnamespace
              join pg_proc p on p.oid = g.tgfoid join pg_namespace f on f.oid = p.pronamespace
              where f.nspname = 'tidegate' and n.nspname <> 'tidegate' and not g.tgisinternal and g.tgparentid = 0
              group by n.nspname, c.relname) t) as triggers,
    -- Sessions of workers and gateways. Whoever may not see what others do sees none of another role's.
    (select coalesce(jsonb_agg(jsonb_build_object('pid', a.pid, 'application', a.application_name, 'from', host(a.client_addr),
            'worker', starts_with(a.application_name, 'tidegate capture ')) order by a.pid), '[]')
        from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid() and a.application_name ~ '^tidegate (capture|gateway|push)') as sessions,
    r.rolsuper or pg_has_role('pg_read_all_stats', 'usage') as sees_sessions,
    l.rolsuper or l.rolreplication
        or exists (select from pg_roles g where g.rolname = 'rds_replication' and pg_has_role(session_user, g.oid, 'member')) as drops_slots,
    quote_ident(session_user) as login,
    quote_ident(o.rolname) as owner,
    coalesce(pg_has_role(n.nspowner, 'usage'), true) as acts_as_owner
from pg_roles r
join pg_roles l on l.rolname = session_user
left join pg_namespace n on n.nspname = 'tidegate'
left join pg_roles o on o.oid = n.nspowner
where r.rolname = current_user
