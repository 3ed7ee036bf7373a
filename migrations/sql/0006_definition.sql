-- Why: a rule that is refused at registration costs a minute; one that is misread later costs everybody's data.
-- What: the one parser of table and grant definitions, scope templates and the `where` language. Its result is what
-- registry_generation.snapshot carries; every process evaluates that, none parses a definition again.

-- What registration refuses has SQLSTATEs of its own, so that callers tell a refusal from a failure:
-- TG001 the definition or its table cannot work; TG002 it would, with a bootstrap; TG003 it cannot be done from here.
create or replace function tidegate.refuse(message text, hint text, code text default 'TG001') returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    raise exception using errcode = refuse.code, message = refuse.message, hint = refuse.hint;
end $f$;

create or replace function tidegate.base_type(type_oid oid) returns oid
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare b oid;
begin
    loop
        select t.typbasetype into b from pg_type t where t.oid = type_oid and t.typtype = 'd';
        if not found then return type_oid; end if;
        type_oid := b;
    end loop;
end $f$;

-- The wire type of a column type; null: not supported. Domains count as their base type.
create or replace function tidegate.wire_type(type_oid oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    b oid := tidegate.base_type(type_oid);
    t record;
    element oid;
begin
    select p.typname, p.typtype, p.typnamespace = 'pg_catalog'::regnamespace as builtin into t from pg_type p where p.oid = b;
    if t.typtype = 'e' then return 'string'; end if;
    select p.oid into element from pg_type p where p.typarray = b;
    if found then
        return 'array:' || tidegate.wire_type(element);
    end if;
    if not t.builtin then return null; end if;
    return case t.typname
        when 'bool' then 'bool'
        when 'int2' then 'int' when 'int4' then 'int' when 'int8' then 'int64'
        when 'float4' then 'float32' when 'float8' then 'float64'
        when 'text' then 'string' when 'varchar' then 'string' when 'bpchar' then 'string'
        when 'uuid' then 'uuid' when 'json' then 'json' when 'jsonb' then 'json' when 'numeric' then 'numeric'
        when 'date' then 'date' when 'time' then 'time' when 'timetz' then 'timetz'
        when 'timestamp' then 'timestamp' when 'timestamptz' then 'timestamptz' when 'interval' then 'interval'
        when 'bytea' then 'bytes'
    end;
end $f$;

-- Which values a column may be compared with in a `where`: bool, int, text, uuid, enum:<oid>; else other:<type>.
create or replace function tidegate.where_category(type_oid oid, collation_oid oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $f$
declare
    b oid := tidegate.base_type(type_oid);
    t record;
begin
    select p.typname, p.typtype, p.typnamespace = 'pg_catalog'::regnamespace as builtin into t from pg_type p where p.oid = b;
    if t.typtype = 'e' then return 'enum:' || b; end if;
    if t.builtin and t.typname in ('text', 'varchar') then
        if exists (select from pg_collation c where c.oid = collation_oid and not c.collisdeterministic) then
            return 'other:' || t.typname || ' with a non-deterministic collation';
        end if;
        return 'text';
    end if;
    if t.builtin and t.typname in ('int2', 'int4', 'int8') then return 'int'; end if;
    if t.builtin and t.typname in ('bool', 'uuid') then return t.typname; end if;
    return 'other:' || format_type(type_oid, null);
end $f$;

-- All columns of a relation by name, with what rules and captures need to know of each.
create or replace function tidegate.relation_columns(relation oid) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $f$
    select coalesce(jsonb_object_agg(a.attname, jsonb_build_object(
        'name', a.attname, 'attnum', a.attnum, 'type', t.typname, 'wire', tidegate.wire_type(a.atttypid),
        'type_oid', a.atttypid::bigint, 'typmod', a.atttypmod, 'nullable', not a.attnotnull,
        'generated', a.attgenerated <> '', 'shown', format_type(a.atttypid, a.atttypmod),
        'category', tidegate.where_category(a.atttypid, a.attcollation))), '{}')
    from pg_attribute a join pg_type t on t.oid = tidegate.base_type(a.atttypid)
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
$f$;

create or replace function tidegate.refuse_unknown_keys(value jsonb, allowed text[], what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare k text;
begin
    if value is null or jsonb_typeof(value) <> 'object' then
        perform tidegate.refuse(format('%s is not an object', what), 'Give an object with the keys ' || array_to_string(allowed, ', ') || '.');
    end if;
    for k in select jsonb_object_keys(value) loop
        if k = 'join' then
            perform tidegate.refuse(format('%s: "join" is not supported yet', what),
                'Store the column that names the scope in the table itself.');
        elsif k <> all (allowed) then
            perform tidegate.refuse(format('%s: unknown key "%s"', what, k), 'Known keys: ' || array_to_string(allowed, ', ') || '.');
        end if;
    end loop;
end $f$;

-- An array of distinct, non-empty strings under `key`, or null when the key is absent or null.
create or replace function tidegate.names_of(value jsonb, key text, what text) returns text[]
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    v jsonb := value -> key;
    names text[];
begin
    if v is null or jsonb_typeof(v) = 'null' then return null; end if;
    if jsonb_typeof(v) <> 'array' or exists (select from jsonb_array_elements(v) e where jsonb_typeof(e) <> 'string') then
        perform tidegate.refuse(format('%s: "%s" is not a list of column names', what, key), format('Write %s = ["a", "b"].', key));
    end if;
    select array_agg(e order by o) into names from jsonb_array_elements_text(v) with ordinality as l(e, o);
    if (select count(distinct n) <> count(*) from unnest(names) n) then
        perform tidegate.refuse(format('%s: "%s" names a column twice', what, key), 'Name each column once.');
    end if;
    return coalesce(names, '{}');
end $f$;

create or replace function tidegate.text_of(value jsonb, key text, what text) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare v jsonb := value -> key;
begin
    if v is null or jsonb_typeof(v) = 'null' then return null; end if;
    if jsonb_typeof(v) <> 'string' then
        perform tidegate.refuse(format('%s: "%s" is not a string', what, key), format('Write %s = "...".', key));
    end if;
    return value ->> key;
end $f$;

create or replace function tidegate.bool_of(value jsonb, key text, what text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare v jsonb := value -> key;
begin
    if v is null or jsonb_typeof(v) = 'null' then return false; end if;
    if jsonb_typeof(v) <> 'boolean' then
        perform tidegate.refuse(format('%s: "%s" is neither true nor false', what, key), format('Write %s = true or leave it out.', key));
    end if;
    return v::boolean;
end $f$;

-- X6: the two parts of a schema-qualified name.
create or replace function tidegate.qualified_name(name text, what text) returns text[]
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare parts text[];
begin
    begin
        parts := parse_ident(name);
    exception when invalid_parameter_value then parts := null;
    end;
    if parts is null or cardinality(parts) <> 2 then
        perform tidegate.refuse(format('%s: "%s" is not a schema-qualified name', what, coalesce(name, '')), 'Write schema.table, such as public.items.');
    end if;
    return parts;
end $f$;

-- Scope templates -----------------------------------------------------------------------------------------------------

-- Parts of a template: {"text"}, {"column"} or {"subject":"id"}. `columns` are those of the table that the template may
-- read (null: none), `captured` those of them that are captured; `subject` says whether {subject.id} may appear.
create or replace function tidegate.parse_template(
    template text, table_name text, columns jsonb, captured text[], subject boolean, what text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    rest text := template;
    piece text;
    parts jsonb := '[]';
    names text[];
    col text;
    after_value boolean := false;
begin
    if coalesce(template, '') = '' then
        perform tidegate.refuse(format('%s: the scope name is empty', what), 'Give a name such as "list:{list_id}" or "catalog".');
    elsif octet_length(template) > 500 then
        perform tidegate.refuse(format('%s: the scope name is longer than 500 bytes', what), 'Give a shorter name.');
    end if;
    while rest <> '' loop
        piece := substring(rest from '^[^{}]+');
        if piece is not null then
            -- A value is percent-encoded as encodeURIComponent does: what it can leave must not begin the next literal,
            -- or two different rows could give one name.
            if after_value and piece ~ '^[A-Za-z0-9_.!~*''()%-]' then
                perform tidegate.refuse(format('%s: after a placeholder comes "%s", which its value could contain', what, left(piece, 1)),
                    'Separate it by a character such as ":" or "/".');
            end if;
            parts := parts || jsonb_build_object('text', piece);
            after_value := false;
            rest := substr(rest, length(piece) + 1);
            continue;
        end if;
        piece := substring(rest from '^{[^{}]*}');
        if piece is null then
            perform tidegate.refuse(format('%s: unbalanced "%s" in the scope name', what, left(rest, 1)), 'A placeholder is {column} or {table.column}.');
        elsif after_value then
            perform tidegate.refuse(format('%s: two placeholders follow each other without a separator', what), 'Separate them by a character such as ":" or "/".');
        end if;
        rest := substr(rest, length(piece) + 1);
        after_value := true;
        begin
            names := parse_ident(trim(both '{}' from piece));
        exception when invalid_parameter_value then names := '{}';
        end;
        if names = array['subject', 'id'] then
            if not subject then
                perform tidegate.refuse(format('%s: {subject.id} has no meaning in the scope of a table', what), 'Use a column of the table that holds the subject.');
            end if;
            parts := parts || jsonb_build_object('subject', 'id');
            continue;
        end if;
        if columns is null then
            perform tidegate.refuse(format('%s: placeholder %s needs "from"', what, piece), 'Name the table in "from", or use {subject.id}.');
        end if;
        col := case when cardinality(names) = 1 then names[1] when cardinality(names) = 2 and names[1] = table_name then names[2] end;
        if col is null then
            perform tidegate.refuse(format('%s: placeholder %s names no column of "%s"', what, piece, table_name), format('Write {column} or {%I.column}.', table_name));
        end if;
        perform tidegate.require_column(col, columns, captured, what);
        if columns -> col ->> 'category' not in ('bool', 'int', 'text', 'uuid') and columns -> col ->> 'type' not in ('text', 'varchar') then
            perform tidegate.refuse(format('%s: column "%s" of type %s cannot be part of a scope name', what, col, columns -> col ->> 'shown'),
                'Use a column of type boolean, smallint, integer, bigint, text, varchar or uuid.');
        end if;
        parts := parts || jsonb_build_object('column', col);
    end loop;
    return parts;
end $f$;

create or replace function tidegate.require_column(col text, columns jsonb, captured text[], what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    if not columns ? col then
        perform tidegate.refuse(format('%s: no column "%s"', what, col),
            'Columns: ' || (select string_agg(k, ', ' order by k) from jsonb_object_keys(columns) k) || '.');
    elsif captured is not null and col <> all (captured) then
        perform tidegate.refuse(format('%s: column "%s" is not captured', what, col), format('Add "%s" to the columns of the table.', col));
    elsif (columns -> col ->> 'generated')::boolean then
        perform tidegate.refuse(format('%s: column "%s" is generated, and its value is not part of the stream', what, col), 'Use the columns that it is computed from.');
    end if;
end $f$;

-- The `where` language ------------------------------------------------------------------------------------------------
--   or     := and { "or" and }                       and := not { "and" not }          not := "not" not | test
--   test   := "(" or ")" | operand [ compare operand | ["not"] "in" "(" literal { "," literal } ")" | "is" ["not"] "null" ]
--   operand := column | table.column | literal | {subject.id}      literal := integer | 'string' | true | false | null
-- Context of a parse: {"what", "table", "columns", "captured", "subject"}.

-- Tokens: {"k": word|name|int|string|op|punct|subject|end, "v": value, "p": position from 1}.
create or replace function tidegate.where_tokens(source text, what text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    pos integer := 1;
    rest text;
    m text;
    kind text;
    tokens jsonb[] := '{}';
begin
    if length(source) > 10000 then
        perform tidegate.refuse(format('%s is longer than 10000 characters', what), 'Give a shorter condition.');
    end if;
    loop
        rest := substr(source, pos);
        m := substring(rest from '^\s+');
        if m is not null then
            pos := pos + length(m);
            continue;
        end if;
        exit when rest = '';
        m := substring(rest from '^[[:alpha:]_][[:alnum:]_$]*'); kind := 'word';
        if m is null then m := substring(rest from '^"(?:[^"]|"")+"'); kind := 'name'; end if;
        if m is null then m := substring(rest from '^-?[0-9]+(?![[:alnum:]_.])'); kind := 'int'; end if;
        if m is null then m := substring(rest from '^''(?:[^'']|'''')*'''); kind := 'string'; end if;
        if m is null then m := substring(rest from '^(?:<=|>=|<>|!=|=|<|>)'); kind := 'op'; end if;
        if m is null then m := substring(rest from '^[(),.]'); kind := 'punct'; end if;
        if m is null then m := substring(rest from '^{\s*subject\s*\.\s*id\s*}'); kind := 'subject'; end if;
        if m is null then
            perform tidegate.refuse(format('%s, position %s: %s', what, pos, case
                when rest ~ '^-?[0-9]' then 'only whole numbers can be compared'
                when rest ~ '^''' then 'the string that begins here has no end'
                when rest ~ '^"' then 'the quoted name that begins here has no end'
                when rest ~ '^{' then 'the only placeholder here is {subject.id}'
                else format('unexpected "%s"', left(rest, 1)) end),
                'The language has columns, literals, = <> < <= > >=, in, is null, and, or, not and parentheses.');
        end if;
        tokens := tokens || jsonb_build_object('k', kind, 'p', pos, 'v', case kind
            when 'word' then lower(m)
            when 'name' then replace(substr(m, 2, length(m) - 2), '""', '"')
            when 'string' then replace(substr(m, 2, length(m) - 2), '''''', '''')
            else m end);
        pos := pos + length(m);
    end loop;
    return to_jsonb(tokens || jsonb_build_object('k', 'end', 'p', pos, 'v', ''));
end $f$;

create or replace function tidegate.where_expected(context jsonb, token jsonb, expected text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    perform tidegate.refuse(format('%s, position %s: expected %s, found %s', context ->> 'what', token ->> 'p', expected,
        case token ->> 'k' when 'end' then 'the end of the text' else format('"%s"', token ->> 'v') end),
        'The language has columns, literals, = <> < <= > >=, in, is null, and, or, not and parentheses.');
end $f$;

create or replace function tidegate.where_is(token jsonb, kind text, value text) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $f$
    select token ->> 'k' = kind and token ->> 'v' = value
$f$;

-- `category` of the operand: a column's category, lit:int, lit:string, lit:bool, null or subject.
create or replace function tidegate.where_operand(tokens jsonb, pos integer, context jsonb, expected text,
    out ast jsonb, out category text, out next integer)
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    t jsonb := tokens -> pos;
    col text;
begin
    next := pos + 1;
    case t ->> 'k'
    when 'int' then
        begin
            ast := jsonb_build_object('literal', (t ->> 'v')::bigint, 'type', 'int');
        exception when numeric_value_out_of_range then
            perform tidegate.refuse(format('%s, position %s: %s does not fit 64 bits', context ->> 'what', t ->> 'p', t ->> 'v'), 'Use a smaller number.');
        end;
        category := 'lit:int';
        return;
    when 'string' then
        ast := jsonb_build_object('literal', t ->> 'v', 'type', 'string');
        category := 'lit:string';
        return;
    when 'subject' then
        if not (context ->> 'subject')::boolean then
            perform tidegate.refuse(format('%s, position %s: {subject.id} has no meaning in the rule of a table', context ->> 'what', t ->> 'p'),
                'Rules of tables say which rows are in a scope; grants say for which subjects.');
        end if;
        ast := '{"subject": "id"}';
        category := 'subject';
        return;
    when 'word' then
        if t ->> 'v' in ('true', 'false') then
            ast := jsonb_build_object('literal', (t ->> 'v')::boolean, 'type', 'bool');
            category := 'lit:bool';
            return;
        elsif t ->> 'v' = 'null' then
            ast := '{"literal": null, "type": "null"}';
            category := 'null';
            return;
        elsif t ->> 'v' in ('and', 'or', 'not', 'in', 'is') then
            perform tidegate.where_expected(context, t, expected);
        end if;
    when 'name' then null;
    else perform tidegate.where_expected(context, t, expected);
    end case;
    col := t ->> 'v';
    if tidegate.where_is(tokens -> next, 'punct', '.') then
        if col <> context ->> 'table' then
            perform tidegate.refuse(format('%s, position %s: "%s" is not the table "%s"', context ->> 'what', t ->> 'p', col, context ->> 'table'),
                'A condition reads the columns of its own table only.');
        end if;
        t := tokens -> (next + 1);
        if t ->> 'k' not in ('word', 'name') then perform tidegate.where_expected(context, t, 'a column name'); end if;
        col := t ->> 'v';
        next := next + 2;
    end if;
    perform tidegate.require_column(col, context -> 'columns',
        (select array_agg(e) from jsonb_array_elements_text(nullif(context -> 'captured', 'null')) e),
        format('%s, position %s', context ->> 'what', t ->> 'p'));
    ast := jsonb_build_object('column', col);
    category := context -> 'columns' -> col ->> 'category';
end $f$;

create or replace function tidegate.where_shown(ast jsonb, context jsonb) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $f$
    select case
        when ast ? 'column' then format('column "%s" (%s)', ast ->> 'column', context -> 'columns' -> (ast ->> 'column') ->> 'shown')
        when ast ? 'subject' then '{subject.id}'
        else case ast ->> 'type' when 'int' then 'an integer' when 'string' then 'a string' when 'bool' then 'a boolean' else 'null' end
    end
$f$;

-- Checks one comparison and gives its operands in the form that is compared as text: uuid literals canonical, enum
-- labels existing.
create or replace function tidegate.where_compare(context jsonb, at text, op text, l jsonb, lcat text, r jsonb, rcat text) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    flipped text := case op when 'lt' then 'gt' when 'le' then 'ge' when 'gt' then 'lt' when 'ge' then 'le' else op end;
    place text := format('%s, position %s', context ->> 'what', at);
begin
    if lcat like 'other:%' or rcat like 'other:%' then
        perform tidegate.refuse(format('%s: %s cannot be compared in a condition', place,
            tidegate.where_shown(case when lcat like 'other:%' then l else r end, context)),
            'Comparable types: boolean, smallint, integer, bigint, text and varchar with a deterministic collation, uuid, enum. Any column may be tested by "is null".');
    end if;
    -- Column first, so that the rest looks at one shape.
    if not l ? 'column' and r ? 'column' then
        return tidegate.where_compare(context, at, flipped, r, rcat, l, lcat);
    end if;
    if lcat = 'subject' or rcat = 'subject' then
        if op <> 'eq' or not l ? 'column' or lcat not in ('int', 'text', 'uuid') then
            perform tidegate.refuse(format('%s: {subject.id} can only be compared as column = {subject.id}', place),
                'The column must be of type smallint, integer, bigint, text, varchar or uuid.');
        end if;
        return jsonb_build_object('op', op, 'left', l, 'right', r);
    end if;
    if not (lcat = rcat or lcat = 'null' or rcat = 'null'
            or (lcat, rcat) in (('int', 'lit:int'), ('bool', 'lit:bool'))
            or (rcat = 'lit:string' and (lcat in ('text', 'uuid') or lcat like 'enum:%'))) then
        perform tidegate.refuse(format('%s: %s cannot be compared with %s', place, tidegate.where_shown(l, context), tidegate.where_shown(r, context)),
            'Both sides must be of the same type.');
    end if;
    if op in ('lt', 'le', 'gt', 'ge') and exists (select from unnest(array[lcat, rcat]) c where c not in ('int', 'lit:int', 'null')) then
        perform tidegate.refuse(format('%s: only integers can be ordered', place), 'Other types can be compared by =, <>, in and is null.');
    end if;
    if rcat = 'lit:string' and lcat = 'uuid' then
        begin
            r := jsonb_set(r, '{literal}', to_jsonb((r ->> 'literal')::uuid::text));
        exception when invalid_text_representation then
            perform tidegate.refuse(format('%s: the string is not a uuid, but column "%s" is', place, l ->> 'column'), 'Write the uuid in full.');
        end;
    elsif rcat = 'lit:string' and lcat like 'enum:%' then
        if not exists (select from pg_enum e where e.enumtypid = substr(lcat, 6)::oid and e.enumlabel = r ->> 'literal') then
            perform tidegate.refuse(format('%s: "%s" is not a value of column "%s"', place, r ->> 'literal', l ->> 'column'),
                'Values: ' || (select string_agg(e.enumlabel, ', ' order by e.enumsortorder) from pg_enum e where e.enumtypid = substr(lcat, 6)::oid) || '.');
        end if;
    end if;
    return jsonb_build_object('op', op, 'left', l, 'right', r);
end $f$;

create or replace function tidegate.where_test(tokens jsonb, pos integer, context jsonb, depth integer, out ast jsonb, out next integer)
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    l record;
    r record;
    t jsonb := tokens -> pos;
    at text := t ->> 'p';
    negated boolean := false;
    list jsonb := '[]';
begin
    if tidegate.where_is(t, 'punct', '(') then
        select * into ast, next from tidegate.where_or(tokens, pos + 1, context, depth + 1);
        if not tidegate.where_is(tokens -> next, 'punct', ')') then perform tidegate.where_expected(context, tokens -> next, '")", "and" or "or"'); end if;
        next := next + 1;
        return;
    end if;
    l := tidegate.where_operand(tokens, pos, context, 'a column, a literal, "not" or "("');
    t := tokens -> l.next;
    next := l.next + 1;
    if t ->> 'k' = 'op' then
        r := tidegate.where_operand(tokens, next, context, 'a column or a literal');
        ast := tidegate.where_compare(context, at, case t ->> 'v' when '=' then 'eq' when '<>' then 'ne' when '!=' then 'ne'
            when '<' then 'lt' when '<=' then 'le' when '>' then 'gt' when '>=' then 'ge' end, l.ast, l.category, r.ast, r.category);
        next := r.next;
    elsif tidegate.where_is(t, 'word', 'is') then
        if tidegate.where_is(tokens -> next, 'word', 'not') then negated := true; next := next + 1; end if;
        if not tidegate.where_is(tokens -> next, 'word', 'null') then
            perform tidegate.where_expected(context, tokens -> next, case when negated then '"null"' else '"null" or "not null"' end);
        elsif l.category = 'subject' then
            perform tidegate.refuse(format('%s, position %s: {subject.id} can only be compared as column = {subject.id}', context ->> 'what', at), 'A subject is never null.');
        end if;
        next := next + 1;
        ast := jsonb_build_object('op', 'is_null', 'arg', l.ast);
    elsif tidegate.where_is(t, 'word', 'in') or (tidegate.where_is(t, 'word', 'not') and tidegate.where_is(tokens -> next, 'word', 'in')) then
        if tidegate.where_is(t, 'word', 'not') then negated := true; next := next + 1; end if;
        if not tidegate.where_is(tokens -> next, 'punct', '(') then perform tidegate.where_expected(context, tokens -> next, '"("'); end if;
        loop
            r := tidegate.where_operand(tokens, next + 1, context, 'a literal');
            if not r.ast ? 'literal' then perform tidegate.where_expected(context, tokens -> (next + 1), 'a literal'); end if;
            list := list || (tidegate.where_compare(context, at, 'eq', l.ast, l.category, r.ast, r.category) -> 'right');
            next := r.next;
            exit when tidegate.where_is(tokens -> next, 'punct', ')');
            if not tidegate.where_is(tokens -> next, 'punct', ',') then perform tidegate.where_expected(context, tokens -> next, '"," or ")"'); end if;
        end loop;
        next := next + 1;
        ast := jsonb_build_object('op', 'in', 'left', l.ast, 'list', list);
    elsif l.category = 'bool' then
        ast := jsonb_build_object('op', 'column', 'arg', l.ast);
        next := l.next;
    else
        perform tidegate.where_expected(context, t, format('a comparison, "in" or "is" after %s', tidegate.where_shown(l.ast, context)));
    end if;
    if negated then ast := jsonb_build_object('op', 'not', 'arg', ast); end if;
end $f$;

create or replace function tidegate.where_not(tokens jsonb, pos integer, context jsonb, depth integer, out ast jsonb, out next integer)
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    if depth > 50 then
        perform tidegate.refuse(format('%s, position %s: nested too deeply', context ->> 'what', tokens -> pos ->> 'p'), 'Use at most 50 levels.');
    end if;
    if tidegate.where_is(tokens -> pos, 'word', 'not') then
        select n.ast, n.next into ast, next from tidegate.where_not(tokens, pos + 1, context, depth + 1) n;
        ast := jsonb_build_object('op', 'not', 'arg', ast);
    else
        select n.ast, n.next into ast, next from tidegate.where_test(tokens, pos, context, depth) n;
    end if;
end $f$;

create or replace function tidegate.where_and(tokens jsonb, pos integer, context jsonb, depth integer, out ast jsonb, out next integer)
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare args jsonb := '[]';
begin
    next := pos - 1;
    loop
        select n.ast, n.next into ast, next from tidegate.where_not(tokens, next + 1, context, depth) n;
        args := args || ast;
        exit when not tidegate.where_is(tokens -> next, 'word', 'and');
    end loop;
    if jsonb_array_length(args) > 1 then ast := jsonb_build_object('op', 'and', 'args', args); end if;
end $f$;

create or replace function tidegate.where_or(tokens jsonb, pos integer, context jsonb, depth integer, out ast jsonb, out next integer)
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare args jsonb := '[]';
begin
    next := pos - 1;
    loop
        select n.ast, n.next into ast, next from tidegate.where_and(tokens, next + 1, context, depth) n;
        args := args || ast;
        exit when not tidegate.where_is(tokens -> next, 'word', 'or');
    end loop;
    if jsonb_array_length(args) > 1 then ast := jsonb_build_object('op', 'or', 'args', args); end if;
end $f$;

-- The AST of a condition; null for none.
create or replace function tidegate.parse_where(source text, context jsonb) returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp as $f$
declare
    tokens jsonb;
    ast jsonb;
    next integer;
begin
    if source is null then return null; end if;
    tokens := tidegate.where_tokens(source, context ->> 'what');
    select o.ast, o.next into ast, next from tidegate.where_or(tokens, 0, context, 0) o;
    if tokens -> next ->> 'k' <> 'end' then perform tidegate.where_expected(context, tokens -> next, '"and", "or" or the end of the text'); end if;
    return ast;
end $f$;
