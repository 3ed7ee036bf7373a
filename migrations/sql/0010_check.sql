-- Why: what was true at registration can be changed by anybody with a DDL right; readiness must see it without writing (H4-H6).
-- What: drift of relations (G5), of the publication (H6), who may emit messages (F8), and leaving without a trace.

-- F8: any role may emit logical messages unless that right is revoked, which only a superuser can. Where the installer may not,
-- `tidegate check` says so.
do $f$
declare
    f regprocedure;
    owner name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'tidegate');
begin
    if (select rolsuper from pg_roles where rolname = current_user) then
        for f in select p.oid::regprocedure from pg_proc p
                 where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = 'pg_logical_emit_message'
                   and has_function_privilege('public', p.oid, 'execute')
        loop
            execute format('revoke execute on function %s from public', f);
            execute format('grant execute on function %s to %I', f, owner);
            insert into tidegate.audit (actor, action, subject, outcome)
            values (session_user, 'revoke_emit_right', jsonb_build_object('function', f::text), 'done');
        end loop;
    end if;
end $f$;

create or replace function tidegate.emit_right_is_public() returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select exists (select from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = 'pg_logical_emit_message'
        and has_function_privilege('public', p.oid, 'execute'))
$f$;

-- G5, K1, K2: every way in which a registered relation differs from what was registered. No row: no drift. Read-only. Columns
-- that are not captured may come and go. With an argument, of that relation alone.
create or replace function tidegate.relation_problems(only_relation integer default null) returns table (relation text, problem text)
language plpgsql stable set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    r record;
    c record;
    col jsonb;
    a record;
    k record;
    owner oid := (select nspowner from pg_namespace where nspname = 'tidegate');
begin
    for r in select * from tidegate.relation q
             where q.state <> 'removed' and (only_relation is null or q.relation_id = only_relation) order by q.relation_id
    loop
        relation := format('%I.%I', r.schema_name, r.table_name);
        select p.*, n.nspname into c from pg_class p join pg_namespace n on n.oid = p.relnamespace where p.oid = r.relation_oid;
        if not found then
            problem := case when to_regclass(relation) is null then 'the registered table was dropped'
                else 'the registered table was replaced by another one of its name' end;
            return next;
            continue;
        end if;
        if (c.nspname, c.relname) is distinct from (r.schema_name, r.table_name) then
            problem := format('the registered table is now %I.%I', c.nspname, c.relname); return next;
        end if;
        if c.relpersistence <> 'p' then problem := 'the table is not logged'; return next; end if;
        if c.relkind <> 'r' then problem := 'it is not an ordinary table any more'; return next; end if;
        if c.relispartition or exists (select from pg_inherits h where h.inhrelid = c.oid) then
            problem := 'the table was attached to a parent'; return next;
        end if;
        if exists (select from pg_inherits h where h.inhparent = c.oid) then
            problem := 'other tables inherit from the table'; return next;
        end if;
        if c.relreplident <> 'd' then problem := 'the replica identity is not DEFAULT'; return next; end if;

        select x.indnkeyatts, x.indimmediate, x.indisvalid, t.attname into k
        from pg_index x join pg_attribute t on t.attrelid = c.oid and t.attnum = x.indkey[0]
        where x.indrelid = c.oid and x.indisprimary;
        if not found then
            problem := 'the table has no primary key'; return next;
        elsif k.indnkeyatts <> 1 or not k.indimmediate or not k.indisvalid or k.attname <> r.key_column then
            problem := 'the primary key was changed'; return next;
        end if;

        for col in select * from jsonb_array_elements(r.resolved -> 'columns') loop
            select t.*, l.collisdeterministic into a from pg_attribute t left join pg_collation l on l.oid = t.attcollation
            where t.attrelid = c.oid and t.attnum = (col ->> 'attnum')::smallint;
            problem := case
                when a.attisdropped is not false then 'was dropped'
                when a.attname <> col ->> 'name' then format('was renamed to %I', a.attname)
                when a.atttypid <> (col ->> 'type_oid')::oid or a.atttypmod <> (col ->> 'typmod')::integer then 'has another type'
                when a.attgenerated <> '' then 'is generated'
                when not (col ->> 'nullable')::boolean and not a.attnotnull then 'may be null now'
                when a.attname = r.key_column and a.collisdeterministic is false then 'has a non-deterministic collation'
            end;
            if problem is not null then
                problem := format('captured column %I %s', col ->> 'name', problem); return next;
            end if;
        end loop;

        if r.resolved ->> 'write' = 'enabled' and not c.relrowsecurity and not (r.resolved ->> 'unrestricted')::boolean then
            problem := 'clients may write, and row-level security is off'; return next;
        end if;
        if not has_table_privilege(owner, c.oid, 'select') then
            problem := 'the owner of the schema tidegate may not read the table'; return next;
        elsif c.relrowsecurity and not (select o.rolsuper or o.rolbypassrls from pg_roles o where o.oid = owner)
            and (c.relforcerowsecurity or not pg_has_role(owner, c.relowner, 'usage')) then
            problem := 'row-level security applies to the owner of the schema tidegate'; return next;
        end if;
    end loop;
end $f$;

-- H6: the publication holds exactly the registered relations, by identity, with all four operations and nothing filtered.
create or replace function tidegate.publication_problems() returns table (relation text, problem text)
language sql stable set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
    with p as (select * from pg_publication where pubname = 'tidegate'),
    member as (
        select m.* from pg_publication_rel m join p on p.oid = m.prpubid
    )
    select null, 'the publication tidegate is missing' where not exists (select from p)
    union all select null, 'the publication tidegate is for all tables' from p where puballtables
    union all select null, 'the publication tidegate is for whole schemas' from p where exists (select from pg_publication_namespace n where n.pnpubid = p.oid)
    union all select null, 'the publication tidegate does not publish insert, update, delete and truncate' from p
        where not (pubinsert and pubupdate and pubdelete and pubtruncate)
    union all select null, 'the publication tidegate publishes through partition roots' from p where pubviaroot
    union all select format('%I.%I', r.schema_name, r.table_name), 'the table is not in the publication'
        from tidegate.relation r cross join p where r.state <> 'removed' and not exists (select from member m where m.prrelid = r.relation_oid)
    union all select m.prrelid::regclass::text, 'the publication holds a table that is not registered'
        from member m where not exists (select from tidegate.relation r where r.state <> 'removed' and r.relation_oid = m.prrelid)
    union all select m.prrelid::regclass::text, 'the publication filters rows of the table' from member m where m.prqual is not null
    union all select m.prrelid::regclass::text, 'the publication has a column list for the table' from member m where m.prattrs is not null
$f$;

-- Removes triggers, functions, publication and schemas; writes of the application go on without them. Gives the slots that are
-- left, which the caller must drop: dropping a slot is not transactional.
create or replace function tidegate.uninstall() returns setof name
language plpgsql set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on set client_min_messages = warning as $f$
declare
    s name;
    t record;
    f record;
begin
    perform tidegate.lock_registration();
    for s in select slot_name from pg_replication_slots where database = current_database() and slot_name ~ '^tidegate_[0-9a-f]{8}$' loop
        return next s;
    end loop;
    for t in select format('drop trigger %I on %I.%I', g.tgname, n.nspname, c.relname) as ddl
             from pg_trigger g join pg_class c on c.oid = g.tgrelid join pg_namespace n on n.oid = c.relnamespace
             join pg_proc p on p.oid = g.tgfoid
             where p.pronamespace = 'tidegate'::regnamespace and not g.tgisinternal and g.tgparentid = 0
             order by c.oid, g.tgname
    loop execute t.ddl; end loop;
    for f in select distinct a.subject ->> 'function' as name from tidegate.audit a where a.action = 'revoke_emit_right' loop
        if to_regprocedure(f.name) is not null and (select rolsuper from pg_roles where rolname = current_user) then
            execute format('grant execute on function %s to public', f.name::regprocedure);
        end if;
    end loop;
    drop publication if exists tidegate;
    drop schema if exists tidegate_projection cascade;
    drop schema if exists tidegate cascade;
end $f$;
