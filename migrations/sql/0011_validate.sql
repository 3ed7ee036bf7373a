-- Why: what cannot work must be refused at registration, and again at each activation (K1), with words that say what to change.
-- What: the checks of a table (K, G, F), and the resolution of table and grant definitions against the catalog. Read-only.

-- Everything about the table itself that must hold whatever is registered of it. Gives its key column and key type.
create or replace function tidegate.check_relation(relation oid, out key_column name, out key_type text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    c record;
    i record;
    what text;
    owner oid := (select nspowner from pg_namespace where nspname = 'tidegate');
begin
    select r.*, n.nspname, format('%I.%I', n.nspname, r.relname) as shown into strict c
    from pg_class r join pg_namespace n on n.oid = r.relnamespace where r.oid = relation;
    what := c.shown;
    if c.relpersistence = 't' then
        perform tidegate.refuse(format('%s is a temporary table: its changes are not in the WAL', what), 'Create it without TEMPORARY.');
    elsif c.nspname in ('tidegate', 'tidegate_projection', 'pg_catalog', 'information_schema') or c.nspname like 'pg\_%' then
        perform tidegate.refuse(format('%s is a system table', what), 'Register tables of your application.');
    end if;
    if c.relkind = 'p' then
        perform tidegate.refuse(format('%s is partitioned, which is not supported yet', what), 'Register a table without partitions.');
    elsif c.relispartition then
        perform tidegate.refuse(format('%s is a partition, which is not supported yet', what), 'Register a table without partitions.');
    elsif c.relkind = 'f' then
        perform tidegate.refuse(format('%s is a foreign table: its changes are not in this server''s WAL', what), 'Register an ordinary table.');
    elsif c.relkind in ('v', 'm') then
        perform tidegate.refuse(format('%s is a view', what), 'Register the tables that it reads.');
    elsif c.relkind <> 'r' then
        perform tidegate.refuse(format('%s is not a table', what), 'Register an ordinary table.');
    elsif c.relpersistence = 'u' then
        perform tidegate.refuse(format('%s is unlogged: its changes are not in the WAL', what), format('Run: alter table %s set logged', what));
    elsif exists (select from pg_inherits h where h.inhparent = relation) then
        perform tidegate.refuse(format('%s has child tables that inherit from it', what), 'Register tables without inheritance.');
    elsif exists (select from pg_inherits h where h.inhrelid = relation) then
        perform tidegate.refuse(format('%s inherits from another table', what), 'Register tables without inheritance.');
    end if;

    -- K1
    select x.indimmediate, x.indnkeyatts, x.indkey, x.indisvalid,
        (select string_agg(quote_ident(a.attname), ', ' order by k.ord) from unnest(x.indkey::smallint[]) with ordinality k(num, ord)
            join pg_attribute a on a.attrelid = relation and a.attnum = k.num where k.ord <= x.indnkeyatts) as columns,
        exists (select from pg_constraint o where o.conindid = x.indexrelid and o.contype = 'p' and o.condeferrable) as deferrable
    into i from pg_index x where x.indrelid = relation and x.indisprimary;
    if not found then
        perform tidegate.refuse(format('%s has no primary key', what),
            case when exists (select from pg_index x join pg_attribute a on a.attrelid = relation and a.attnum = x.indkey[0] and not a.attnotnull
                    where x.indrelid = relation and x.indisunique and x.indnkeyatts = 1)
                then 'Its unique column may be null. Make a column not null and the primary key.'
                else 'Give it a primary key of one column.' end);
    elsif i.indnkeyatts <> 1 then
        perform tidegate.refuse(format('%s has a composite primary key (%s)', what, i.columns),
            'Give it a primary key of one column, and make the others a unique constraint.');
    elsif i.deferrable or not i.indimmediate then
        perform tidegate.refuse(format('the primary key of %s is deferrable', what), 'Create the constraint again without DEFERRABLE.');
    elsif not i.indisvalid then
        perform tidegate.refuse(format('the index of the primary key of %s is not valid', what), 'Rebuild it: reindex index concurrently.');
    end if;
    select a.attname, t.typname as base, t.typnamespace = 'pg_catalog'::regnamespace as builtin, a.attnotnull, a.attgenerated,
        format_type(a.atttypid, a.atttypmod) as shown, coalesce(l.collisdeterministic, true) as deterministic
    into i
    from pg_index x join pg_attribute a on a.attrelid = relation and a.attnum = x.indkey[0]
    join pg_type t on t.oid = tidegate.base_type(a.atttypid)
    left join pg_collation l on l.oid = a.attcollation
    where x.indrelid = relation and x.indisprimary;
    key_column := i.attname;
    key_type := case when not i.builtin then null
        when i.base in ('text', 'varchar', 'uuid') then 'string' when i.base in ('int2', 'int4') then 'int' when i.base = 'int8' then 'int64' end;
    if key_type is null then
        perform tidegate.refuse(format('the key column "%s" of %s has type %s', key_column, what, i.shown),
            'A key is text, varchar, uuid, smallint, integer or bigint (or a domain over one of them).');
    elsif not i.deterministic then
        perform tidegate.refuse(format('the key column "%s" of %s has a non-deterministic collation', key_column, what), 'Use a deterministic collation.');
    elsif not i.attnotnull then
        perform tidegate.refuse(format('the key column "%s" of %s may be null', key_column, what), 'Make it not null.');
    elsif i.attgenerated <> '' then
        perform tidegate.refuse(format('the key column "%s" of %s is generated', key_column, what), 'Use an ordinary or an identity column.');
    end if;

    -- K2
    if c.relreplident <> 'd' then
        perform tidegate.refuse(format('%s has replica identity %s', what, case c.relreplident when 'f' then 'FULL' when 'n' then 'NOTHING' else 'USING INDEX' end),
            format('Run: alter table %s replica identity default', what));
    end if;

    -- F9: what the freeze guard needs.
    if not has_table_privilege(owner, relation, 'select') then
        perform tidegate.refuse(format('role %I, which owns the schema tidegate, may not read %s', pg_get_userbyid(owner), what),
            format('Run: grant select on %s to %I', what, pg_get_userbyid(owner)));
    elsif c.relrowsecurity and not (select r.rolsuper or r.rolbypassrls from pg_roles r where r.oid = owner)
            and (c.relforcerowsecurity or not pg_has_role(owner, c.relowner, 'usage')) then
        perform tidegate.refuse(format('row-level security of %s applies to role %I, which owns the schema tidegate', what, pg_get_userbyid(owner)),
            format('Run: alter role %I bypassrls', pg_get_userbyid(owner)));
    end if;
end $f$;

-- The captured columns in row order, as the snapshot carries them.
create or replace function tidegate.captured_columns(wanted text[], columns jsonb, what text) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    col text;
    c jsonb;
    result jsonb := '[]';
begin
    foreach col in array wanted loop
        c := columns -> col;
        if c is null then
            perform tidegate.refuse(format('%s: no column "%s"', what, col),
                'Columns: ' || (select string_agg(k, ', ' order by k) from jsonb_object_keys(columns) k) || '.');
        elsif (c ->> 'generated')::boolean then
            perform tidegate.refuse(format('%s: column "%s" is generated, and its value is not part of the stream', what, col), format('Leave it out: exclude = ["%s"].', col));
        elsif c ->> 'wire' is null then
            perform tidegate.refuse(format('%s: column "%s" has type %s, which is not supported', what, col, c ->> 'shown'), format('Leave it out: exclude = ["%s"].', col));
        end if;
        result := result || jsonb_build_array(c - array['generated', 'shown', 'category']);
    end loop;
    return result;
end $f$;

-- A table definition with defaults filled in and order made canonical: two that mean the same compare equal.
create or replace function tidegate.normal_table(definition jsonb, what text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    included text[];
    excluded text[];
    write text;
    scopes jsonb := coalesce(nullif(definition -> 'scopes', 'null'), '[]');
    scope jsonb;
    normal jsonb := '[]';
begin
    perform tidegate.refuse_unknown_keys(definition, array['columns', 'exclude', 'write', 'unrestricted', 'scopes'], what);
    included := tidegate.names_of(definition, 'columns', what);
    excluded := tidegate.names_of(definition, 'exclude', what);
    if included is not null and excluded is not null then
        perform tidegate.refuse(format('%s: both "columns" and "exclude" are given', what), 'Give one of them.');
    end if;
    write := coalesce(tidegate.text_of(definition, 'write', what), 'read_only');
    if write not in ('enabled', 'read_only') then
        perform tidegate.refuse(format('%s: write = "%s" is not known', what, write), 'Write "enabled" or "read_only".');
    end if;
    if jsonb_typeof(scopes) <> 'array' then
        perform tidegate.refuse(format('%s: "scopes" is not a list', what), 'Write [{"name": "list:{list_id}"}].');
    end if;
    for scope in select * from jsonb_array_elements(scopes) loop
        perform tidegate.refuse_unknown_keys(scope, array['name', 'where'], what || ', scope');
        normal := normal || jsonb_build_object('name', tidegate.text_of(scope, 'name', what || ', scope'), 'where', tidegate.text_of(scope, 'where', what || ', scope'));
    end loop;
    if (select count(distinct e) <> count(*) from jsonb_array_elements(normal) e) then
        perform tidegate.refuse(format('%s: one scope is given twice', what), 'Give each scope once.');
    end if;
    return jsonb_build_object('columns', to_jsonb(included), 'write', write, 'unrestricted', tidegate.bool_of(definition, 'unrestricted', what),
        'exclude', (select jsonb_agg(e order by e) from unnest(excluded) e),
        'scopes', coalesce((select jsonb_agg(jsonb_strip_nulls(e) order by e ->> 'name' collate "C", e ->> 'where' collate "C") from jsonb_array_elements(normal) e), '[]'));
end $f$;

-- Checks a table definition against the catalog: everything of its snapshot entry but the ids. Read-only.
create or replace function tidegate.resolve_table(relation oid, normal jsonb) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    c record;
    key record;
    columns jsonb;
    wanted text[];
    scope jsonb;
    scopes jsonb := '[]';
    what text;
begin
    key := tidegate.check_relation(relation);
    select r.relname, n.nspname, r.relrowsecurity, format('%I.%I', n.nspname, r.relname) as shown into strict c
    from pg_class r join pg_namespace n on n.oid = r.relnamespace where r.oid = relation;
    columns := tidegate.relation_columns(relation);
    if normal -> 'columns' <> 'null' then
        select array_agg(e order by o) into wanted from jsonb_array_elements_text(normal -> 'columns') with ordinality as l(e, o);
    else
        select array_agg(k order by (v -> 'attnum')::integer) into wanted from jsonb_each(columns) e(k, v)
        where normal -> 'exclude' = 'null' or not normal -> 'exclude' ? k;
        if normal -> 'exclude' <> 'null' then
            if exists (select from jsonb_array_elements_text(normal -> 'exclude') e where not columns ? e) then
                perform tidegate.refuse(format('%s: "exclude" names a column that does not exist: "%s"', c.shown,
                    (select e from jsonb_array_elements_text(normal -> 'exclude') e where not columns ? e limit 1)), 'Name existing columns.');
            end if;
        end if;
    end if;
    if not key.key_column::text = any (coalesce(wanted, '{}')) then
        perform tidegate.refuse(format('%s: the key column "%s" is left out', c.shown, key.key_column), 'The key is always captured.');
    end if;
    if normal ->> 'write' = 'enabled' and not c.relrowsecurity and not (normal ->> 'unrestricted')::boolean then
        perform tidegate.refuse(format('%s: write = "enabled", but the table has no row-level security', c.shown),
            format('Run: alter table %s enable row level security, with policies; or write unrestricted = true to let every client write every row.', c.shown));
    end if;
    for scope in select * from jsonb_array_elements(normal -> 'scopes') loop
        what := format('scope "%s" of %s', scope ->> 'name', c.shown);
        scopes := scopes || jsonb_build_object('name', scope ->> 'name',
            'template', tidegate.parse_template(scope ->> 'name', c.relname, columns, wanted, false, what),
            'where', coalesce(tidegate.parse_where(scope ->> 'where', jsonb_build_object('what', 'where of ' || what, 'table', c.relname,
                'columns', columns, 'captured', to_jsonb(wanted), 'subject', false)), 'null'));
    end loop;
    return jsonb_build_object('schema', c.nspname, 'name', c.relname, 'oid', relation::bigint,
        'key', jsonb_build_object('column', key.key_column, 'type', key.key_type),
        'columns', tidegate.captured_columns(wanted, columns, c.shown),
        'write', normal ->> 'write', 'unrestricted', (normal ->> 'unrestricted')::boolean, 'scopes', scopes);
end $f$;

-- A capture dependency: its key, and the columns that grants read.
create or replace function tidegate.resolve_dependency(relation oid, wanted text[]) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    c record;
    key record;
    columns jsonb := tidegate.relation_columns(relation);
begin
    key := tidegate.check_relation(relation);
    select r.relname, n.nspname, format('%I.%I', n.nspname, r.relname) as shown into strict c
    from pg_class r join pg_namespace n on n.oid = r.relnamespace where r.oid = relation;
    return jsonb_build_object('schema', c.nspname, 'name', c.relname, 'oid', relation::bigint,
        'key', jsonb_build_object('column', key.key_column, 'type', key.key_type),
        'columns', tidegate.captured_columns(array(select distinct on ((columns -> u ->> 'attnum')::integer) u
            from unnest(wanted || key.key_column::text) u order by (columns -> u ->> 'attnum')::integer), columns, c.shown),
        'write', 'read_only', 'unrestricted', false, 'scopes', '[]'::jsonb);
end $f$;

create or replace function tidegate.normal_grant(definition jsonb, what text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare source text;
begin
    perform tidegate.refuse_unknown_keys(definition, array['scope', 'from', 'where', 'anonymous'], what);
    source := tidegate.text_of(definition, 'from', what);
    if source is not null then
        source := (select format('%I.%I', p[1], p[2]) from tidegate.qualified_name(source, what || ', from') p);
    end if;
    return jsonb_strip_nulls(jsonb_build_object('scope', coalesce(tidegate.text_of(definition, 'scope', what), ''), 'from', source,
        'where', tidegate.text_of(definition, 'where', what), 'anonymous', tidegate.bool_of(definition, 'anonymous', what)));
end $f$;

-- Checks a grant against the catalog: its snapshot entry but for ids, and in "oid" and "needs" the table and the columns that
-- it reads. Read-only.
create or replace function tidegate.resolve_grant(normal jsonb) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    what text := format('grant "%s"', normal ->> 'scope');
    relation oid;
    columns jsonb;
    table_name text;
    template jsonb;
    ast jsonb;
    conjuncts jsonb;
    subject_column text;
    anonymous boolean := (normal ->> 'anonymous')::boolean;
begin
    if normal ? 'from' then
        relation := tidegate.relation_oid(normal ->> 'from', what || ', from');
        perform tidegate.check_relation(relation);
        columns := tidegate.relation_columns(relation);
        table_name := (select c.relname from pg_class c where c.oid = relation);
        if anonymous then
            perform tidegate.refuse(format('%s: "anonymous" and "from" exclude each other', what), 'Rows grant scopes to subjects; a socket without a token has none.');
        end if;
    elsif normal ? 'where' then
        perform tidegate.refuse(format('%s: "where" needs "from"', what), 'Name the table whose rows grant the scope.');
    end if;
    template := tidegate.parse_template(normal ->> 'scope', table_name, columns, null, true, what);
    if anonymous and template @? '$[*].subject' then
        perform tidegate.refuse(format('%s: {subject.id} has no value without a token', what), 'Leave out "anonymous", or the placeholder.');
    end if;
    ast := tidegate.parse_where(normal ->> 'where', jsonb_build_object('what', 'where of ' || what, 'table', table_name,
        'columns', columns, 'captured', null, 'subject', true));
    if relation is not null then
        conjuncts := case when ast ->> 'op' = 'and' then ast -> 'args' when ast is null then '[]' else jsonb_build_array(ast) end;
        if (select count(*) from jsonb_array_elements(conjuncts) e where e -> 'right' ? 'subject') <> 1 then
            perform tidegate.refuse(format('%s: "where" needs exactly one condition of the form column = {subject.id}, joined to the rest by "and"', what),
                'It says which column of the row names the subject.');
        end if;
        subject_column := (select e -> 'left' ->> 'column' from jsonb_array_elements(conjuncts) e where e -> 'right' ? 'subject');
        conjuncts := coalesce((select jsonb_agg(e order by o) from jsonb_array_elements(conjuncts) with ordinality l(e, o) where not coalesce(e -> 'right' ? 'subject', false)), '[]');
        if conjuncts @? '$.**.subject' then
            perform tidegate.refuse(format('%s: {subject.id} may not appear under "or" or "not"', what),
                'Write column = {subject.id} and the rest.');
        end if;
        ast := case jsonb_array_length(conjuncts) when 0 then null when 1 then conjuncts -> 0 else jsonb_build_object('op', 'and', 'args', conjuncts) end;
    end if;
    return jsonb_build_object('scope', normal ->> 'scope', 'template', template, 'subject_column', subject_column,
        'where', coalesce(ast, 'null'), 'anonymous', anonymous, 'oid', relation::bigint,
        'needs', coalesce((select jsonb_agg(distinct n) from (
            select subject_column as n where subject_column is not null
            union all select v #>> '{}' from jsonb_path_query(jsonb_build_array(template, coalesce(ast, 'null')), 'strict $.**.column') v) q), '[]'));
end $f$;

-- G1: the OID behind a schema-qualified name.
create or replace function tidegate.relation_oid(name text, what text) returns oid
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    parts text[] := tidegate.qualified_name(name, what);
    found_oid oid := to_regclass(format('%I.%I', parts[1], parts[2]));
begin
    if found_oid is null then
        perform tidegate.refuse(format('%s: table %I.%I does not exist', what, parts[1], parts[2]), 'Create it first, or correct the name.');
    end if;
    return found_oid;
end $f$;
