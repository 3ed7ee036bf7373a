-- Purpose: everything about server, database, role and named tables that an examination judges, as of one statement; always one row.
-- Reads catalogues and views only, and needs nothing of ours. $1: settings to read, $2: tables to look at, as schema.table.
-- Caller: check/facts.rs.
select
    getdatabaseencoding()::text as encoding,
    pg_is_in_recovery() as standby,
    quote_ident(current_database()) as database,
    quote_ident(current_user) as role,
    (select coalesce(jsonb_object_agg(s.name, jsonb_build_object('value', s.setting, 'shown', current_setting(s.name),
            'source', s.source, 'context', s.context, 'pending_restart', s.pending_restart)), '{}')
        from pg_settings s where s.name = any ($1::text[])) as settings,
    (select count(*) from pg_replication_slots) as slots,
    -- As `tidegate uninstall` knows them.
    exists (select from pg_replication_slots s where s.database = current_database() and s.plugin = 'pgoutput'
        and s.slot_name ~ '^tidegate_[0-9a-f]{8}$') as own_slot,
    exists (select from pg_replication_slots s where s.database = current_database() and s.plugin = 'pgoutput'
        and s.slot_name ~ '^tidegate_[0-9a-f]{8}$' and s.active) as own_slot_active,
    array(select quote_literal(s.slot_name) from pg_replication_slots s
        where not s.active and not (s.database is not distinct from current_database() and s.slot_name ~ '^tidegate_[0-9a-f]{8}$')
        order by s.slot_name limit 5) as idle_slots,
    (select count(*) from pg_stat_replication) as senders,
    (select count(*) from pg_prepared_xacts) as prepared,
    extract(epoch from clock_timestamp() - (select min(p.prepared) from pg_prepared_xacts p))::float8 as prepared_age,
    r.rolsuper as superuser,
    r.rolbypassrls as bypass_rls,
    -- A walsender acts as the role that logged in.
    l.rolsuper or l.rolreplication as replication,
    exists (select from pg_roles g where g.rolname = 'rds_replication' and pg_has_role(session_user, g.oid, 'member')) as rds_replication,
    quote_ident(session_user) as login,
    has_database_privilege(current_database(), 'create') as may_create,
    -- Roles and functions that only one service has.
    array(select g.rolname::text from pg_roles g
        where g.rolname in ('rdsadmin', 'rds_superuser', 'cloudsqladmin', 'cloudsqlsuperuser', 'azure_pg_admin', 'supabase_admin', 'neon_superuser')) as service_roles,
    exists (select from pg_proc p where p.proname = 'aurora_version') as aurora,
    quote_ident(o.rolname) as schema_owner,
    pg_has_role(current_user, n.nspowner, 'usage') as acts_as_owner,
    array(select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = 'pg_logical_emit_message'
            and has_function_privilege('public', p.oid, 'execute') order by 1) as emit_public,
    array(select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = 'pg_logical_emit_message'
            and not has_function_privilege(coalesce(n.nspowner, r.oid), p.oid, 'execute') order by 1) as emit_lacking,
    (select coalesce(jsonb_agg(jsonb_build_object('exists', c.oid is not null,
            'quoted', case when c.oid is null then w.name else format('%I.%I', t.nspname, c.relname) end, 'ordinary', c.relkind = 'r',
            'owner', quote_ident(pg_get_userbyid(c.relowner)), 'owned', pg_has_role(current_user, c.relowner, 'usage'),
            'readable', has_table_privilege(coalesce(n.nspowner, r.oid), c.oid, 'select'),
            'secured', c.relrowsecurity and (c.relforcerowsecurity or not pg_has_role(coalesce(n.nspowner, r.oid), c.relowner, 'usage')))
            order by w.o), '[]')
        from unnest($2::text[]) with ordinality as w(name, o)
        left join (pg_class c join pg_namespace t on t.oid = c.relnamespace)
            on w.name in (t.nspname || '.' || c.relname, format('%I.%I', t.nspname, c.relname)) and c.relkind not in ('i', 'I', 't', 'S', 'c')
    ) as tables,
    -- Of who owns, or will own, the schema: fences run as that role.
    coalesce(o.rolsuper or o.rolbypassrls, r.rolsuper or r.rolbypassrls) as owner_bypasses_rls
from pg_roles r
join pg_roles l on l.rolname = session_user
left join pg_namespace n on n.nspname = 'tidegate'
left join pg_roles o on o.oid = n.nspowner
where r.rolname = current_user
