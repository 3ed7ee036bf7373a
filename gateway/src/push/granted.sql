-- Purpose: whether the login role and the role $1 have what tidegate.grant_push gives. Caller: push/start.rs, once per start.
select has_schema_privilege(session_user, 'tidegate', 'usage') and has_schema_privilege($1, 'tidegate', 'usage')
    and not exists (
        select from pg_proc p
        where p.pronamespace = (select oid from pg_namespace where nspname = 'tidegate')
            and (p.proname ~ '^push(_|$)' and p.proname !~ '^push_holds_' or p.proname = 'prune_write_fences')
            and not has_function_privilege(session_user, p.oid, 'execute'))
