-- Why: registration is where everything that could not work later is refused, with words that say what to change.
-- What: register_table, register_grant, the publication, the activation message, the plan that `tidegate apply` shows.
-- Definitions are checked by 0011_validate.sql.

do $f$
begin
    if not exists (select from pg_publication where pubname = 'tidegate') then
        create publication tidegate with (publish = 'insert, update, delete, truncate');
    end if;
end $f$;

-- Takes what every registration needs, in one order, and refuses where it could not be right.
create or replace function tidegate.begin_registration() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare owner oid := (select nspowner from pg_namespace where nspname = 'tidegate');
begin
    if not pg_has_role(current_user, owner, 'usage') then
        perform tidegate.refuse(format('role %I may not register tables', current_user),
            format('Register as role %I, which owns the schema tidegate, or as a member of it.', pg_get_userbyid(owner)), 'TG003');
    elsif getdatabaseencoding() <> 'UTF8' then
        perform tidegate.refuse(format('the database has encoding %s', getdatabaseencoding()), 'Tidegate needs a database with encoding UTF8.', 'TG003');
    elsif current_setting('transaction_isolation') <> 'read committed' then
        -- Whether a table is empty is decided under its lock, which an older snapshot could not see.
        perform tidegate.refuse(format('registration runs in isolation level %s', current_setting('transaction_isolation')),
            'Register in a transaction of level READ COMMITTED.', 'TG003');
    end if;
    perform tidegate.lock_registration();
    -- First the transaction id, then the look at stream_reset: a slot creation that starts after that look waits for this
    -- transaction, so its snapshot holds this registration. One that started before has left its record, committed.
    perform pg_current_xact_id();
end $f$;

-- Whether a stream is active or being made: then a table that holds rows needs a bootstrap (B13), else the first baseline
-- covers it.
create or replace function tidegate.stream_exists() returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $f$
    select exists (select from tidegate.progress)
        or exists (select from tidegate.stream_reset where phase not in ('activated', 'cleaned', 'discarded'))
$f$;

create or replace function tidegate.has_rows(relation oid) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp set row_security = off as $f$
declare some boolean;
begin
    execute format('select exists (select from only %s)', relation::regclass) into some;
    return some;
end $f$;

-- The registered relation of that name, if any; refuses when another table has taken its place.
create or replace function tidegate.registered(name text, what text) returns tidegate.relation
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    parts text[] := tidegate.qualified_name(name, what);
    r tidegate.relation;
    current_oid oid := to_regclass(format('%I.%I', parts[1], parts[2]));
begin
    select * into r from tidegate.relation q where q.schema_name = parts[1] and q.table_name = parts[2] and q.state <> 'removed';
    if r.relation_id is not null and r.relation_oid is distinct from current_oid then
        perform tidegate.refuse(format('%I.%I is registered, but the table of that name is now %s', parts[1], parts[2],
            case when current_oid is null then 'gone' else 'another one' end), 'Put the registered table back. Where that cannot be, leave and begin anew: tidegate uninstall, migrate, apply.', 'TG002');
    elsif r.relation_id is null then
        select * into r from tidegate.relation q where q.relation_oid = current_oid and q.state <> 'removed';
        if found then
            perform tidegate.refuse(format('%I.%I is registered as %I.%I', parts[1], parts[2], r.schema_name, r.table_name),
                'Give the table its registered name back.', 'TG002');
        end if;
    end if;
    return r;
end $f$;

create or replace function tidegate.next_registry_generation() returns integer
language sql volatile set search_path = pg_catalog, pg_temp as $f$
    select max(id) + 1 from tidegate.registry_generation
$f$;

-- G2: writes the complete new generation and announces it in the WAL: the last thing that a registration does, so that every
-- later row event of this transaction already belongs to it (G3).
create or replace function tidegate.activate_registry(action text, subject jsonb) returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp as $f$
declare
    generation integer := tidegate.next_registry_generation();
    drift record;
begin
    -- K1: a generation is validated whole, not just what is new in it.
    select p.relation, p.problem into drift from tidegate.relation_problems() p limit 1;
    if found then
        perform tidegate.refuse(format('registered table %s has drifted: %s', drift.relation, drift.problem), 'Undo that change first.', 'TG002');
    end if;
    -- H6: nothing is registered for a publication that would not deliver it. A table too many harms nothing that is registered.
    select p.relation, p.problem into drift from tidegate.publication_problems() p
    where p.problem <> 'the publication holds a table that is not registered' limit 1;
    if found then
        perform tidegate.refuse(coalesce(drift.relation || ': ', '') || drift.problem,
            'Put the publication back as it was: every registered table, all four operations, nothing filtered.', 'TG002');
    end if;
    insert into tidegate.registry_generation (id, snapshot) select generation, jsonb_build_object('generation', generation,
        'relations', coalesce((select jsonb_agg(r.resolved order by r.relation_id) from tidegate.relation r where r.state = 'active'), '[]'),
        'grants', coalesce((select jsonb_agg((g.resolved - array['oid', 'needs']) || jsonb_build_object('grant_id', g.grant_id) order by g.grant_id) from tidegate.grant_rule g where g.state = 'active'), '[]'));
    insert into tidegate.audit (actor, action, subject, outcome) values (session_user, action, subject, 'registry generation ' || generation);
    perform pg_logical_emit_message(true, 'tidegate.registry', '1:' || generation);
    return generation;
end $f$;

-- What grants read of a relation.
create or replace function tidegate.grant_needs(relation oid) returns text[]
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select coalesce(array_agg(distinct n), '{}') from tidegate.grant_rule g, jsonb_array_elements_text(g.resolved -> 'needs') n
    where g.state = 'active' and (g.resolved ->> 'oid')::oid = relation
$f$;

-- Refuses a change that would need the rows of the table read again. Only who may write needs none.
create or replace function tidegate.check_computable(old tidegate.relation, relation oid, resolved jsonb, what text) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $f$
declare rows_apart text[] := array['relation_id', 'table_id', 'since', 'write', 'unrestricted', 'scopes'];
begin
    -- row_version holds the key: another one would be another table.
    if old.relation_id is not null and (old.resolved -> 'key' <> resolved -> 'key'
            or jsonb_path_query_first(old.resolved, '$.columns[*] ? (@.name == $.key.column).type_oid')
                <> jsonb_path_query_first(resolved, '$.columns[*] ? (@.name == $.key.column).type_oid')) then
        perform tidegate.refuse(format('%s: the key column has changed since registration', what), 'Put the key column back as it was.', 'TG002');
    end if;
    if old.relation_id is not null and old.kind = 'synced' and (old.resolved - rows_apart) = (resolved - (rows_apart || 'kind'::text)) || '{"kind": "synced"}'
        and (select coalesce(jsonb_agg(s - 'rule_id'), '[]') from jsonb_array_elements(old.resolved -> 'scopes') s) = resolved -> 'scopes' then
        return;
    end if;
    if tidegate.has_rows(relation) and tidegate.stream_exists() then
        perform tidegate.refuse(format('%s holds rows, and a stream is active: this needs a bootstrap', what),
            'Register a table before its first row, or before the first start of the stream; or leave and begin anew: tidegate uninstall, migrate, apply.', 'TG002');
    end if;
end $f$;

-- Stores a checked relation, its fences and its place in the publication. Caller activates.
create or replace function tidegate.store_relation(old tidegate.relation, kind text, definition jsonb, resolved jsonb) returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp as $f$
declare
    id integer := old.relation_id;
    relation oid := (resolved ->> 'oid')::oid;
    qualified text := format('%I.%I', resolved ->> 'schema', resolved ->> 'name');
    new_table_id integer := case when kind = 'synced' then coalesce(old.table_id, nextval('tidegate.table_id')) end;
begin
    if id is null then
        insert into tidegate.relation (table_id, kind, schema_name, table_name, relation_oid, filenode, key_column, key_type, state, definition, resolved)
        values (new_table_id, kind, resolved ->> 'schema', resolved ->> 'name', relation, pg_relation_filenode(relation),
            resolved -> 'key' ->> 'column', resolved -> 'key' ->> 'type', 'active', definition, '{}')
        returning relation_id into id;
    end if;
    resolved := resolved || jsonb_build_object('relation_id', id, 'table_id', new_table_id, 'kind', kind, 'since', tidegate.next_registry_generation(),
        'scopes', coalesce((select jsonb_agg(s || jsonb_build_object('rule_id', nextval('tidegate.rule_id')) order by o)
            from jsonb_array_elements(resolved -> 'scopes') with ordinality as l(s, o)), '[]'));
    update tidegate.relation r set table_id = new_table_id, kind = store_relation.kind, definition = store_relation.definition,
        resolved = store_relation.resolved, filenode = pg_relation_filenode(relation) where r.relation_id = id;
    perform tidegate.install_fences(id);
    if not exists (select from pg_publication where pubname = 'tidegate') then
        perform tidegate.refuse('the publication tidegate is missing',
            'Create it again with every registered table: create publication tidegate for table ...', 'TG002');
    end if;
    if not exists (select from pg_publication_rel p join pg_publication b on b.oid = p.prpubid where b.pubname = 'tidegate' and p.prrelid = relation) then
        execute format('alter publication tidegate add table only %s', qualified);
    end if;
    return id;
end $f$;

-- Locks the table as CREATE TRIGGER will anyway, and makes sure that the name still means it.
create or replace function tidegate.lock_relation(name text, what text) returns oid
language plpgsql volatile set search_path = pg_catalog, pg_temp as $f$
declare
    relation oid := tidegate.relation_oid(name, what);
    owner oid;
begin
    -- What cannot be registered is not locked either.
    perform tidegate.check_relation(relation);
    owner := (select c.relowner from pg_class c where c.oid = relation);
    if not pg_has_role(current_user, owner, 'usage') then
        perform tidegate.refuse(format('%s belongs to role %I, which %I is not a member of', relation::regclass, pg_get_userbyid(owner), current_user),
            format('Run: grant %I to %I; or register as a superuser.', pg_get_userbyid(owner), current_user), 'TG003');
    end if;
    execute format('lock table only %s in share row exclusive mode', relation::regclass);
    if relation is distinct from tidegate.relation_oid(name, what) then
        perform tidegate.refuse(format('%s: the table was replaced meanwhile', what), 'Try again.', 'TG003');
    end if;
    return relation;
end $f$;

-- What registering this definition would do. Read-only: unchanged, new or changed; refuses what registration would refuse.
create or replace function tidegate.table_status(name text, definition jsonb) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    what text := format('table "%s"', name);
    old tidegate.relation := tidegate.registered(name, what);
    normal jsonb := tidegate.normal_table(definition, what);
    relation oid;
    resolved jsonb;
begin
    -- A table that has drifted is registered anew, where that can be computed.
    if old.state = 'active' and old.kind = 'synced' and old.definition = normal
        and not exists (select from tidegate.relation_problems(old.relation_id)) then
        return 'unchanged';
    end if;
    relation := tidegate.relation_oid(name, what);
    resolved := tidegate.resolve_table(relation, normal);
    perform tidegate.check_grants_captured(relation, resolved, what);
    perform tidegate.check_computable(old, relation, resolved, what);
    return case when old.kind = 'synced' then 'changed' else 'new' end;
end $f$;

create or replace function tidegate.check_grants_captured(relation oid, resolved jsonb, what text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare missing text := (select n from unnest(tidegate.grant_needs(relation)) n
    where not exists (select from jsonb_array_elements(resolved -> 'columns') c where c ->> 'name' = n) limit 1);
begin
    if missing is not null then
        perform tidegate.refuse(format('%s: a grant reads column "%s", which is not captured', what, missing), format('Add "%s" to the columns of the table.', missing));
    end if;
end $f$;

-- Registers a table, or changes its registration where that needs no row read again. An unchanged definition returns
-- 'unchanged' after reading, without a lock or a write (L5); else 'new' or 'changed'.
create or replace function tidegate.register_table(name text, definition jsonb) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    what text := format('table "%s"', name);
    status text := tidegate.table_status(name, definition);
    relation oid;
    resolved jsonb;
    normal jsonb;
    old tidegate.relation;
    id integer;
begin
    if status = 'unchanged' then return status; end if;
    perform tidegate.begin_registration();
    -- Again, now that no other registration runs and the table stands still.
    relation := tidegate.lock_relation(name, what);
    status := tidegate.table_status(name, definition);
    if status = 'unchanged' then return status; end if;
    old := tidegate.registered(name, what);
    normal := tidegate.normal_table(definition, what);
    resolved := tidegate.resolve_table(relation, normal);
    id := tidegate.store_relation(old, 'synced', normal, resolved);
    perform tidegate.activate_registry('register_table', jsonb_build_object('relation_id', id, 'status', status));
    return status;
end $f$;

-- `planned`: by the OID of a table, the columns that it will capture, where that is about to change.
create or replace function tidegate.grant_status_with(definition jsonb, planned jsonb) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    normal jsonb := tidegate.normal_grant(definition, 'grant');
    what text := format('grant "%s"', normal ->> 'scope');
    old tidegate.relation;
    resolved jsonb;
    needs text[];
    captured jsonb;
begin
    if normal ? 'from' then old := tidegate.registered(normal ->> 'from', what); end if;
    if exists (select from tidegate.grant_rule g where g.definition = normal and g.state = 'active') then return 'unchanged'; end if;
    resolved := tidegate.resolve_grant(normal);
    if not normal ? 'from' then return 'new'; end if;
    select array_agg(n) into needs from jsonb_array_elements_text(resolved -> 'needs') n;
    perform tidegate.captured_columns(needs, tidegate.relation_columns((resolved ->> 'oid')::oid), what);
    captured := coalesce(planned -> (resolved ->> 'oid'), case when old.kind = 'synced' then old.resolved -> 'columns' end);
    if captured is not null and exists (select from unnest(needs) n where not exists (
            select from jsonb_array_elements(captured) c where c ->> 'name' = n)) then
        perform tidegate.refuse(format('%s reads columns of %s that are not captured: %s', what, normal ->> 'from', array_to_string(needs, ', ')),
            'Add them to the columns of the table.');
    end if;
    if tidegate.has_rows((resolved ->> 'oid')::oid) and tidegate.stream_exists() then
        perform tidegate.refuse(format('%s: %s holds rows, and a stream is active: this needs a bootstrap', what, normal ->> 'from'),
            'Register the grant before the first row of the table, or before the first start of the stream; or leave and begin anew: tidegate uninstall, migrate, apply.', 'TG002');
    end if;
    return 'new';
end $f$;

create or replace function tidegate.grant_status(definition jsonb) returns text
language sql volatile set search_path = pg_catalog, pg_temp as $f$
    select tidegate.grant_status_with(definition, '{}')
$f$;

-- Registers a grant, and the table that it reads as a capture dependency where it is not registered yet.
create or replace function tidegate.register_grant(definition jsonb) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    normal jsonb := tidegate.normal_grant(definition, 'grant');
    what text := format('grant "%s"', normal ->> 'scope');
    status text := tidegate.grant_status(definition);
    relation oid;
    resolved jsonb;
    needs text[];
    old tidegate.relation;
    id integer;
    stored integer;
begin
    if status = 'unchanged' then return status; end if;
    perform tidegate.begin_registration();
    if normal ? 'from' then relation := tidegate.lock_relation(normal ->> 'from', what); end if;
    status := tidegate.grant_status(definition);
    if status = 'unchanged' then return status; end if;
    resolved := tidegate.resolve_grant(normal);
    if relation is not null then
        old := tidegate.registered(normal ->> 'from', what);
        id := old.relation_id;
        select array_agg(distinct n) into needs
        from (select jsonb_array_elements_text(resolved -> 'needs') as n union select unnest(tidegate.grant_needs(relation))) q;
        if old.relation_id is null or old.kind = 'capture_dependency' then
            id := tidegate.store_relation(old, 'capture_dependency', '{}', tidegate.resolve_dependency(relation, needs));
        end if;
    end if;
    insert into tidegate.grant_rule as g (definition, resolved, state)
    values (normal, resolved || jsonb_build_object('relation_id', id), 'active')
    on conflict on constraint grant_rule_definition_key do update set resolved = excluded.resolved, state = 'active'
    returning g.grant_id into stored;
    perform tidegate.activate_registry('register_grant', jsonb_build_object('grant_id', stored));
    return status;
end $f$;

-- What applying a whole file would do: {"tables": [{"name", ...definition}], "grants": [...]}. Read-only. A grant is judged by the
-- tables as this file leaves them, because apply registers tables first.
create or replace function tidegate.definition_plan(definitions jsonb)
returns table (kind text, name text, status text, reason text, hint text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off set standard_conforming_strings = on as $f$
declare
    entry jsonb;
    relation oid;
    planned jsonb := '{}';
begin
    perform tidegate.refuse_unknown_keys(definitions, array['tables', 'grants'], 'the definitions');
    for kind, entry in select 'table', t from jsonb_array_elements(coalesce(nullif(definitions -> 'tables', 'null'), '[]')) t
        union all select 'grant', g from jsonb_array_elements(coalesce(nullif(definitions -> 'grants', 'null'), '[]')) g
    loop
        reason := null; hint := null;
        name := case kind when 'table' then entry ->> 'name' else entry ->> 'scope' end;
        begin
            if kind = 'grant' then
                status := tidegate.grant_status_with(entry, planned);
            else
                status := tidegate.table_status(entry ->> 'name', entry - 'name');
                relation := tidegate.relation_oid(entry ->> 'name', 'table');
                planned := planned || jsonb_build_object(relation::text,
                    tidegate.resolve_table(relation, tidegate.normal_table(entry - 'name', 'table')) -> 'columns');
            end if;
        exception when sqlstate 'TG001' or sqlstate 'TG002' or sqlstate 'TG003' then
            status := 'refused';
            get stacked diagnostics reason = message_text, hint = pg_exception_hint;
        end;
        return next;
    end loop;
end $f$;
