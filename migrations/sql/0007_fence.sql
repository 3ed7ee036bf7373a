-- Why: a row change whose version, order or very existence we cannot prove must never reach a client (F).
-- What: per registered relation the row_version table and the fence and guard functions, generated; their triggers; the proof
-- that they are in place (F11).

-- One advisory lock serialises everything that changes registrations or their triggers, so that it cannot deadlock.
create or replace function tidegate.lock_registration() returns void
language sql set search_path = pg_catalog, pg_temp as $f$
    select pg_advisory_xact_lock(hashtextextended('tidegate registration', 0))
$f$;

-- What install_fences installed: what F11 is proved against.
create table if not exists tidegate.fence_object (
    relation_id   integer not null references tidegate.relation (relation_id),
    trigger_name  name not null,
    function_name name not null,
    -- pg_trigger.tgtype: row 1, before 2, insert 4, delete 8, update 16, truncate 32.
    trigger_type  smallint not null,
    function_hash bytea not null,
    -- The condition of the freeze guard; null for all others.
    condition     text,
    primary key (relation_id, trigger_name)
);

-- A key in the form in which row_version stores it. Strings of more than 1000 bytes become a digest, so that our index never
-- fails where the application's did not (its index may compress better than ours). The result is longer than 1000 bytes
-- again: it can never be mistaken for a short key. The fence saves the call for short keys: its bound is this one.
create or replace function tidegate.version_key(key text) returns text
language sql immutable strict parallel safe as $f$
    select case when pg_catalog.octet_length(key) <= 1000 then key
        else pg_catalog.repeat('#', 940) || pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(key, 'UTF8')), 'hex') end
$f$;

-- K3. A decoded TRUNCATE blocks capture, so it is refused up front.
create or replace function tidegate.refuse_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $f$
begin
    raise exception using errcode = '0A000',
        message = format('TRUNCATE of %I.%I is not supported: tidegate streams this table', tg_table_schema, tg_table_name),
        hint = 'Use DELETE.';
end $f$;

-- F9. Fires only on a table whose file is new. A STABLE function sees the snapshot of the statement that fired it, in which a
-- row that the statement has just inserted is visible only if it was frozen. Where we may no longer read the table, the
-- application's write goes on: relation_problems() reports the lost right.
create or replace function tidegate.refuse_freeze() returns trigger
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set row_security = off as $f$
declare frozen boolean;
begin
    begin
        execute format('select true from only %s where ctid = $1', tg_relid::regclass) into frozen using new.ctid;
    exception when insufficient_privilege then
        return null;
    end;
    if frozen then
        raise exception using errcode = '0A000',
            message = format('COPY FREEZE into %I.%I is not supported: tidegate streams this table', tg_table_schema, tg_table_name),
            hint = 'Use COPY without FREEZE.';
    end if;
    return null;
end $f$;

create or replace function tidegate.function_hash(function_oid oid) returns bytea
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select sha256(convert_to(format('%s|%s|%s|%s|%s', l.lanname, p.prosecdef, p.provolatile, p.proconfig, p.prosrc), 'UTF8'))
    from pg_proc p join pg_language l on l.oid = p.prolang where p.oid = function_oid
$f$;

-- Type of row_version's key: the key column's base type; text for varchar, whose length it need not repeat.
create or replace function tidegate.version_key_type(relation tidegate.relation, out type_name text, out collation_name text)
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select case t.typname when 'varchar' then 'text' else t.typname end,
        case when t.typname in ('text', 'varchar') then format('%I.%I', n.nspname, c.collname) end
    from pg_attribute a
    join pg_type t on t.oid = tidegate.base_type(a.atttypid)
    left join pg_collation c on c.oid = a.attcollation
    left join pg_namespace n on n.oid = c.collnamespace
    where a.attrelid = relation.relation_oid and a.attname = relation.key_column and not a.attisdropped
$f$;

-- The fence of one relation. Its order state is a chain: the OLD ctid of each operation must be the ctid that the fence before
-- left behind, within one transaction (xid and start time, so that a restored row never counts) and one filenode.
create or replace function tidegate.create_fence_function(relation tidegate.relation, key_type text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $body$
declare
    qualified text := format('%I.%I', relation.schema_name, relation.table_name);
    head text := format('1:%s:%s:%s:%s:%s:', case relation.kind when 'synced' then 's' else 'd' end, relation.relation_id,
        coalesce(relation.table_id::text, ''), octet_length(qualified), qualified);
    key_oid oid := (select (c ->> 'type_oid')::oid from jsonb_array_elements(relation.resolved -> 'columns') c
        where c ->> 'name' = relation.key_column);
begin
    -- Bodies are quoted as values: whatever a name contains ends none of them.
    execute format('create or replace function tidegate.fence_%s() returns trigger
        language plpgsql security definer set search_path = pg_catalog, pg_temp as %L', relation.relation_id, format($fence$
#variable_conflict use_column
declare
    k %3$s;
    changed boolean;
    v uuid := gen_random_uuid();
    m bigint;
    x xid8 := pg_current_xact_id();
    b timestamptz;
    fn oid;
    ot tid;
    nt tid;
    message_at pg_lsn;
begin
    -- Only this block meets a key column that was renamed or retyped. Capture blocks on that drift (G5); the application's
    -- write goes on. A value of another type is not touched: to convert it would run its owner's cast with our rights.
    begin
        if tg_op = 'UPDATE' then
            if pg_typeof(new.%2$I) = %10$s::oid then
                k := new.%2$I; changed := new.%2$I is distinct from old.%2$I;
            end if;
        elsif tg_op = 'INSERT' then
            if pg_typeof(new.%2$I) = %10$s::oid then
                k := new.%2$I; nt := new.ctid;
            end if;
        elsif pg_typeof(old.%2$I) = %10$s::oid then
            k := old.%2$I; nt := old.ctid; ot := nt;
        end if;
    exception when others then
        return null;
    end;
    if k is null then
        return null;
    end if;
    -- The usual case, in the fewest expressions: PL/pgSQL sets up each one anew for each row. The first change by this transaction of a row
    -- that is there: no order to prove. Everything else leaves FOUND false. ON CONFLICT goes by the unique index whatever the
    -- statistics say: a planned UPDATE may scan the table, which is slow, and under SERIALIZABLE conflicts with every row.
    if not changed then
        insert into tidegate.row_version_%1$s as r (key, version, alive, xid, began, tid, tid0, filenode)
        values (%4$s, v, true, x, transaction_timestamp(), new.ctid, old.ctid, pg_relation_filenode(tg_relid))
        on conflict (key) do update set
            version = excluded.version, xid = excluded.xid, began = excluded.began, tid = excluded.tid, tid0 = excluded.tid0,
            filenode = excluded.filenode
        where r.xid <> excluded.xid and r.alive;
    end if;
    if not found then
        -- F1: a BEFORE trigger that fired after the guard changed it.
        if changed then
            raise exception using errcode = '27000', message = %6$L, hint = %7$L;
        end if;
        if tg_op = 'UPDATE' then
            nt := new.ctid; ot := old.ctid;
        end if;
        b := transaction_timestamp(); fn := pg_relation_filenode(tg_relid);
        insert into tidegate.row_version_%1$s as r (key, version, alive, xid, began, tid, tid0, filenode)
        values (%4$s, v, tg_op <> 'DELETE', x, b, nt, ot, fn)
        on conflict (key) do update set
            version = excluded.version, alive = excluded.alive, xid = excluded.xid, began = excluded.began, tid = excluded.tid,
            filenode = excluded.filenode,
            tid0 = case when r.xid = excluded.xid and r.began = excluded.began and r.filenode = excluded.filenode
                then r.tid0 else excluded.tid0 end
        where r.xid <> excluded.xid or r.began <> excluded.began or r.filenode <> excluded.filenode
            or case when tg_op = 'INSERT' then not r.alive and r.tid0 is distinct from excluded.tid
                else r.alive and r.tid = excluded.tid0 end;
        if not found then
            raise exception using errcode = '27000', message = format(%8$L, tg_op), hint = %9$L;
        end if;
    end if;
    -- F5: a mutation id counts only if this very transaction recorded it: the setting alone is forgeable.
    if current_setting('tidegate.mutation', true) ~ '^[0-9]{1,18}$' then
        insert into tidegate.write_fence (fence_id, mutation_id, subject, client_id, number, relation_id, key, version)
        select overlay(v::text placing '8' from 15)::uuid, c.mutation_id, c.subject, c.client_id, c.number, %1$s, k::text, v
        from tidegate.client_mutation c
        where c.mutation_id = current_setting('tidegate.mutation')::bigint and c.xid = x
        returning mutation_id into m;
    end if;
    -- F2: the WAL insert position is strictly increasing, because each fence writes a message after it has read it. The fence id is not
    -- drawn by itself, but made of the version, here and above alike: marked as UUID version 8 where that is a 4. It is as unique, and
    -- a second random one would cost as much as all else here. An assignment is evaluated without a query of its own, PERFORM is not.
    message_at := pg_logical_emit_message(true, 'tidegate.fence',
        concat(%5$L, left(tg_op, 1), ':', pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'), ':', v, ':',
            overlay(v::text placing '8' from 15), ':', m, ':', k));
    return null;
end $fence$,
        relation.relation_id, relation.key_column, key_type,
        case when key_type = 'text' then 'case when octet_length(k) <= 1000 then k else tidegate.version_key(k) end' else 'k' end,
        head,
        format('the key of %s cannot change: tidegate streams this table', qualified),
        'Delete the row and insert another one. A trigger must not change the key either.',
        format('%%s of a row of %s is fenced out of order', replace(qualified, '%', '%%')),
        'A row-level trigger changed a row whose own change was not fenced yet. Make it AFTER ... FOR EACH STATEMENT or a deferred constraint trigger.',
        key_oid));

    execute format('create or replace function tidegate.guard_%s() returns trigger language plpgsql as %L', relation.relation_id, format($guard$
declare
    changed boolean;
begin
    -- Reads nothing but the row, and its one operator is qualified: neither another role nor a pinned path is needed, and whatever a
    -- drifted type brings along runs as who writes.
    begin
        changed := new.%1$I operator(pg_catalog.<>) old.%1$I;
    exception when others then
        return new;
    end;
    if changed then
        raise exception using errcode = '27000', message = %2$L, hint = %3$L;
    end if;
    return new;
end $guard$,
        relation.key_column, format('the key of %s cannot change: tidegate streams this table', qualified),
        'Delete the row and insert another one.'));
    execute format('revoke all on function tidegate.fence_%1$s(), tidegate.guard_%1$s() from public', relation.relation_id);
end $body$;

-- Trigger names: among triggers of one kind PostgreSQL fires by name. The guard must be last before the change, the fence first
-- after it.
create or replace function tidegate.wanted_triggers(relation_id integer)
returns table (trigger_name name, function_name name, trigger_type smallint, timing text, freeze boolean)
language sql immutable set search_path = pg_catalog, pg_temp as $f$
    values ('!tidegate_fence'::name, format('fence_%s', relation_id)::name, 29::smallint, 'after insert or update or delete on %s for each row', false),
        ('!tidegate_freeze', 'refuse_freeze', 5, 'after insert on %s for each row', true),
        ('!tidegate_truncate', 'refuse_truncate', 34, 'before truncate on %s for each statement', false),
        ('~tidegate_guard', format('guard_%s', relation_id)::name, 19, 'before update on %s for each row', false)
$f$;

create or replace function tidegate.trigger_condition(trigger_oid oid) returns text
language sql stable set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
    select substring(pg_get_triggerdef(trigger_oid) from ' WHEN \((.*)\) EXECUTE ')
$f$;

-- F11: every way in which the triggers of registered relations differ from what was installed. No row: proved. Read-only.
create or replace function tidegate.trigger_problems() returns table (relation text, problem text)
language sql stable set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
    with wanted as (
        select r.relation_id, r.relation_oid, format('%I.%I', r.schema_name, r.table_name) as shown, w.*,
            o.function_hash, o.condition, to_regprocedure(format('tidegate.%I()', w.function_name))::oid as function_oid
        from tidegate.relation r
        cross join lateral tidegate.wanted_triggers(r.relation_id) w
        left join tidegate.fence_object o on o.relation_id = r.relation_id and o.trigger_name = w.trigger_name
            and o.function_name = w.function_name and o.trigger_type = w.trigger_type
        where r.state <> 'removed'
    )
    select w.shown, s.problem_text
    from wanted w
    left join pg_trigger t on t.tgrelid = w.relation_oid and t.tgname = w.trigger_name and not t.tgisinternal
    left join pg_proc f on f.oid = w.function_oid
    cross join lateral (values
        (w.function_hash is null, 'trigger %I was not installed by this version'),
        (f.oid is null, 'function of trigger %I is missing'),
        (f.oid is not null and tidegate.function_hash(f.oid) <> w.function_hash, 'function of trigger %I was changed'),
        (f.oid is not null and f.proowner <> (select nspowner from pg_namespace where nspname = 'tidegate'), 'function of trigger %I has another owner'),
        (t.oid is null, 'trigger %I is missing'),
        (t.tgfoid <> f.oid, 'trigger %I calls another function'),
        (t.tgtype <> w.trigger_type, 'trigger %I has another timing, event or level'),
        (t.tgenabled <> 'A', 'trigger %I is not enabled always'),
        (t.tgattr <> ''::int2vector or t.tgnargs <> 0 or t.tgconstraint <> 0 or t.tgdeferrable or t.tgparentid <> 0
            or t.tgoldtable is not null or t.tgnewtable is not null, 'trigger %I has columns, arguments, a constraint or transition tables'),
        (t.oid is not null and tidegate.trigger_condition(t.oid) is distinct from w.condition, 'trigger %I has another condition')
    ) as p(holds, problem)
    cross join lateral (select format(p.problem, w.trigger_name)) as s(problem_text)
    where p.holds
$f$;

-- Creates or brings up to date everything that fences one relation. A trigger that is already as wanted is not touched: so
-- a replay (L2) replaces functions without a lock on the application's table. Caller holds lock_registration().
create or replace function tidegate.install_fences(relation_id integer) returns void
language plpgsql set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    r tidegate.relation;
    key record;
    w record;
    present record;
    renew boolean;
    wanted_condition text;
    table_sql text;
    owner_sql text := (select quote_ident(pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'tidegate');
begin
    select * into strict r from tidegate.relation q where q.relation_id = install_fences.relation_id;
    if to_regclass(format('tidegate.row_version_%s', r.relation_id)) is null then
        key := tidegate.version_key_type(r);
        execute format($ddl$
            create table tidegate.row_version_%1$s (
                key      %2$s %3$s primary key,
                version  uuid not null,
                -- Whether the newest fence left the row in place; dead entries keep the version of their deletion.
                alive    boolean not null,
                xid      xid8 not null,
                began    timestamptz not null,
                tid      tid not null,
                tid0     tid,
                filenode oid not null
            ) with (fillfactor = 70)$ddl$,
            r.relation_id, key.type_name, coalesce('collate ' || key.collation_name, ''));
        execute format('alter table tidegate.row_version_%s owner to %s', r.relation_id, owner_sql);
    end if;
    perform tidegate.create_fence_function(r, (select format_type(a.atttypid, null) from pg_attribute a
        where a.attrelid = to_regclass(format('tidegate.row_version_%s', r.relation_id)) and a.attname = 'key'));
    execute format('alter function tidegate.fence_%1$s() owner to %2$s', r.relation_id, owner_sql);
    execute format('alter function tidegate.guard_%1$s() owner to %2$s', r.relation_id, owner_sql);

    for w in select * from tidegate.wanted_triggers(r.relation_id) loop
        select t.oid, tidegate.trigger_condition(t.oid) as condition, o.condition as installed into present
        from pg_trigger t
        left join tidegate.fence_object o on o.relation_id = r.relation_id and o.trigger_name = w.trigger_name
        where t.tgrelid = r.relation_oid and t.tgname = w.trigger_name and not t.tgisinternal
            and t.tgfoid = to_regprocedure(format('tidegate.%I()', w.function_name)) and t.tgtype = w.trigger_type
            and t.tgenabled = 'A' and t.tgattr = ''::int2vector and t.tgnargs = 0;
        -- A dropped relation has no triggers to bring up to date: relation_problems() reports it.
        table_sql := (select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where c.oid = r.relation_oid);
        continue when table_sql is null;
        -- G1: in a restored database another table may have that OID. A table of another name is ours only if it has our trigger.
        continue when present.oid is null and table_sql <> format('%I.%I', r.schema_name, r.table_name);
        renew := present.oid is null or present.condition is distinct from present.installed;
        if not renew and w.freeze and present.condition not like format('%%(%s)::oid%%', pg_relation_filenode(r.relation_oid)) then
            -- A rewrite since then makes the guard look at every insert (8 us each): renewed only if nobody has to wait for it.
            begin
                execute format('lock table only %s in share row exclusive mode nowait', table_sql);
                renew := true;
            exception when lock_not_available then
                null;
            end;
        end if;
        if renew then
            -- Frozen rows are possible only in a file that the same transaction created: one that is new since now, or one of
            -- this transaction.
            wanted_condition := case when w.freeze then format(
                'when (pg_catalog.pg_relation_filenode(new.tableoid) is distinct from %s::pg_catalog.oid or pg_catalog.pg_current_xact_id() operator(pg_catalog.=) %L::pg_catalog.xid8)',
                pg_relation_filenode(r.relation_oid), pg_current_xact_id()) else '' end;
            execute format('create or replace trigger %I ' || w.timing || ' %s execute function tidegate.%I()',
                w.trigger_name, table_sql, wanted_condition, w.function_name);
            execute format('alter table %s enable always trigger %I', table_sql, w.trigger_name);
        end if;
        insert into tidegate.fence_object as o (relation_id, trigger_name, function_name, trigger_type, function_hash, condition)
        select r.relation_id, w.trigger_name, w.function_name, w.trigger_type,
            tidegate.function_hash(to_regprocedure(format('tidegate.%I()', w.function_name))), tidegate.trigger_condition(t.oid)
        from pg_trigger t where t.tgrelid = r.relation_oid and t.tgname = w.trigger_name and not t.tgisinternal
        on conflict on constraint fence_object_pkey do update set function_name = excluded.function_name,
            trigger_type = excluded.trigger_type, function_hash = excluded.function_hash, condition = excluded.condition
        where (o.function_name, o.trigger_type, o.function_hash, o.condition)
            is distinct from (excluded.function_name, excluded.trigger_type, excluded.function_hash, excluded.condition);
    end loop;
end $f$;

-- L2: a replay brings the text above to every registered relation.
select tidegate.lock_registration() where exists (select from tidegate.relation where state <> 'removed');
select tidegate.install_fences(relation_id) from tidegate.relation where state <> 'removed' order by relation_id;
