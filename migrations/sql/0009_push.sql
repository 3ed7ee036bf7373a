-- Why: a client's write must end exactly once, run under the application's own role and policies, and cost few round trips.
-- What: tidegate.push runs one push in one statement, so in one transaction and one round trip. It is SECURITY INVOKER, called by
-- the gateway's login role, because it changes the role: the application's statements run as the configured role, everything of
-- ours in SECURITY DEFINER functions that only the login role may call. tidegate.grant_push gives both exactly what they need.
-- Called by: gateway/src/push.
--
-- Every query of ours here is a look-up by an index. Its plan is kept, and made generic at once and without sequential scans, because
-- it may be made while a table is still empty.

-- F6, F10: whether the newest version of a row is `base`; nil: whether no fence has touched it. It stands in the WHERE of the
-- application's UPDATE or DELETE, where PostgreSQL evaluates it once with the row as found, and again, after it has waited for
-- another writer of the row, with the row lock held (EvalPlanQual). So it is true only if nobody wrote between the look and the
-- lock. VOLATILE gives each evaluation a snapshot of its own: it sees what that other writer committed. One function per relation,
-- so that its plan is kept. Open to whoever may use the schema: it tells equality with a random token, nothing else.
create or replace function tidegate.create_push_functions(relation tidegate.relation) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $body$
declare
    -- A table of versions that exists keeps its type.
    key_type text := coalesce((select format_type(a.atttypid, null) from pg_attribute a
        where a.attrelid = to_regclass(format('tidegate.row_version_%s', relation.relation_id)) and a.attname = 'key'),
        (select t.type_name from tidegate.version_key_type(relation) t));
begin
    execute format($ddl$
create or replace function tidegate.push_holds_%1$s(key text, base uuid) returns boolean
language plpgsql volatile strict security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $holds$
declare current uuid := (select r.version from tidegate.row_version_%1$s r where r.key = %2$s);
begin
    if base = '00000000-0000-0000-0000-000000000000' then
        return current is null;
    end if;
    return (current = base) is true;
end $holds$;
$ddl$, relation.relation_id, case key_type when 'text' then 'tidegate.version_key($1)' else '$1::' || key_type end);
    execute format('alter function tidegate.push_holds_%s(text, uuid) owner to %s', relation.relation_id,
        (select quote_ident(pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'tidegate'));
end $body$;

create or replace function tidegate.relation_push_functions() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $f$
begin
    perform tidegate.create_push_functions(new);
    return null;
end $f$;
create or replace trigger push_functions after insert or update of relation_oid, key_column, kind on tidegate.relation
    for each row when (new.kind = 'synced' and new.state <> 'removed') execute function tidegate.relation_push_functions();
-- Also where a tool registers that keeps triggers from firing.
alter table tidegate.relation enable always trigger push_functions;
select tidegate.create_push_functions(r) from tidegate.relation r where r.kind = 'synced' and r.state <> 'removed';

-- The newest version of a row by its fences, dead rows included; null: none yet.
create or replace function tidegate.push_current(relation_id integer, key text) returns uuid
language plpgsql volatile strict security definer set search_path = pg_catalog, pg_temp as $f$
declare
    current uuid;
    key_type text;
begin
    key_type := (select format_type(a.atttypid, null) from pg_attribute a
        where a.attrelid = ('tidegate.row_version_' || relation_id)::regclass and a.attname = 'key');
    execute format('select r.version from tidegate.row_version_%s r where r.key = %s', relation_id,
        case key_type when 'text' then 'tidegate.version_key($1)' else '$1::' || key_type end) into current using key;
    return current;
end $f$;

-- V3 for one hello: the client's marks, and whether this server can vouch for them. A known client costs no write.
create or replace function tidegate.push_hello(p_subject text, p_client uuid, p_new boolean, p_acked bigint, p_awaited bigint,
    out state text, out last_number bigint, out settled bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $f$
begin
    select c.last_number, c.settled into last_number, settled from tidegate.client c
    where c.subject = p_subject and c.client_id = p_client;
    if not found and p_new then
        insert into tidegate.client (subject, client_id) values (p_subject, p_client) on conflict do nothing;
        select c.last_number, c.settled into last_number, settled from tidegate.client c
        where c.subject = p_subject and c.client_id = p_client;
    end if;
    state := case when last_number is null or greatest(p_acked, p_awaited) > last_number then 'client_expired' else 'known' end;
end $f$;

-- V3, first half. Locks the client's row and sorts the numbers p_first, p_first + 1, … into stored, to be run, and not now. Those to
-- be run get their record at once: the fence honours only a mutation that this transaction has recorded (F5).
-- `run_from`: index of the first to be run, null if none. `stop`: why the rest is not run: gap, capture_behind.
create or replace function tidegate.push_begin(p_subject text, p_client uuid, p_new boolean, p_acked bigint, p_prune boolean,
    p_registry integer, p_unmaterialized_max integer, p_first bigint, p_fingerprints bytea[], p_relations integer[], p_keys text[],
    p_afters bigint[],
    out state text, out stop text, out run_from integer, out mutation_ids bigint[],
    out statuses text[], out codes text[], out messages text[], out versions uuid[],
    out after_statuses text[], out after_versions uuid[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $f$
declare
    total integer := cardinality(p_fingerprints);
    last_of bigint := p_first + total - 1;
    behind boolean := false;
    c record;
    s record;
begin
    state := 'ok';
    statuses := array_fill(null::text, array[total]); codes := statuses; messages := statuses; after_statuses := statuses;
    versions := array_fill(null::uuid, array[total]); after_versions := versions;
    -- The usual case in one statement: the registry is the one that the statements were composed from (G2), all numbers are next,
    -- and few are pending (V2: numbers are consecutive and come round in order, so the oldest pending one bounds their count).
    with next as (
        update tidegate.client t set last_number = last_of, settled = greatest(t.settled, p_acked)
        where t.subject = p_subject and t.client_id = p_client and t.last_number = p_first - 1 and p_acked <= t.last_number
            and (select g.id from tidegate.registry_generation g order by g.id desc limit 1) = p_registry
            and coalesce((select f.number from tidegate.write_fence f where f.subject = p_subject and f.client_id = p_client
                and f.materialized_commit_lsn is null and f.covered_by is null order by f.number limit 1), last_of)
                > last_of - p_unmaterialized_max
        returning 1
    ), recorded as (
        insert into tidegate.client_mutation (subject, client_id, number, fingerprint, status)
        select p_subject, p_client, p_first + u.i - 1, u.f, 'accepted' from next, unnest(p_fingerprints) with ordinality u(f, i)
        returning mutation_id, number
    )
    select array_agg(r.mutation_id order by r.number) into mutation_ids from recorded r;
    if mutation_ids is not null then
        run_from := 1;
    else
        mutation_ids := array_fill(null::bigint, array[total]);
        if p_registry <> (select max(g.id) from tidegate.registry_generation g) then
            state := 'registry_changed'; return;
        end if;
        behind := (select count(*) from (select distinct f.number from tidegate.write_fence f
            where f.subject = p_subject and f.client_id = p_client and f.materialized_commit_lsn is null and f.covered_by is null
            limit p_unmaterialized_max) pending) + total > p_unmaterialized_max;
    end if;
    if run_from is null then
        if p_new then
            insert into tidegate.client (subject, client_id) values (p_subject, p_client) on conflict do nothing;
        end if;
        select * into c from tidegate.client t where t.subject = p_subject and t.client_id = p_client for update;
        if not found or p_acked > c.last_number then
            state := 'client_expired'; return;
        end if;
        for s in select m.* from tidegate.client_mutation m
                 where m.subject = p_subject and m.client_id = p_client and m.number between p_first and last_of
        loop
            if s.status <> 'discarded' and s.fingerprint <> p_fingerprints[s.number - p_first + 1] then
                state := 'client_forked'; return;
            end if;
            statuses[s.number - p_first + 1] := s.status;
            codes[s.number - p_first + 1] := s.code;
            messages[s.number - p_first + 1] := s.message;
            versions[s.number - p_first + 1] := s.version;
        end loop;
        for i in 1..least(c.last_number, last_of) - p_first + 1 loop
            if statuses[i] is null then
                statuses[i] := 'rejected'; codes[i] := 'outcome_expired';
            end if;
        end loop;
        if p_first > c.last_number + 1 then
            stop := 'gap';
        elsif last_of > c.last_number then
            if behind then
                stop := 'capture_behind';
            else
                run_from := c.last_number - p_first + 2;
            end if;
        end if;
        if run_from is not null or p_acked > c.settled then
            update tidegate.client t set last_number = case when run_from is null then t.last_number else last_of end,
                settled = greatest(t.settled, p_acked)
            where t.subject = p_subject and t.client_id = p_client;
        end if;
    end if;

    if run_from is not null and mutation_ids[total] is null then
        for s in insert into tidegate.client_mutation (subject, client_id, number, fingerprint, status)
                 select p_subject, p_client, p_first + u.i - 1, u.f, 'accepted'
                 from unnest(p_fingerprints) with ordinality u(f, i) where u.i >= run_from
                 returning mutation_id, number
        loop
            mutation_ids[s.number - p_first + 1] := s.mutation_id;
        end loop;
    end if;
    -- Bases of the form {after: n} with n before what runs now. A record that was pruned, because the client acknowledged it,
    -- still has its write fence.
    if run_from is not null and p_afters is not null then
        for i in run_from..total loop
            continue when p_afters[i] is null or p_afters[i] >= p_first + run_from - 1;
            select m.status, m.version into s from tidegate.client_mutation m
            where m.subject = p_subject and m.client_id = p_client and m.number = p_afters[i];
            if found then
                after_statuses[i] := s.status; after_versions[i] := s.version;
            else
                after_versions[i] := (tidegate.push_produced(p_subject, p_client, p_afters[i], p_relations[i], p_keys[i])).version;
                after_statuses[i] := case when after_versions[i] is not null then 'accepted' end;
            end if;
        end loop;
    end if;
    -- Outcomes that the client has stored go, once their fences are materialized or covered.
    if p_prune then
        delete from tidegate.client_mutation m where m.subject = p_subject and m.client_id = p_client and m.number <= p_acked
            and not exists (select from tidegate.write_fence f where f.subject = m.subject and f.client_id = m.client_id
                and f.number = m.number and f.materialized_commit_lsn is null and f.covered_by is null);
    end if;
end $f$;

-- What mutation `p_number` made of one row, by the fences of its transaction.
create or replace function tidegate.push_produced(p_subject text, p_client uuid, p_number bigint, p_relation integer, p_key text,
    out fenced boolean, out version uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $f$
declare found_versions uuid[];
begin
    found_versions := array(select f.version from tidegate.write_fence f
        where f.subject = p_subject and f.client_id = p_client and f.number = p_number
            and f.relation_id = p_relation and f.key = p_key limit 2);
    fenced := found_versions <> '{}';
    -- Where triggers wrote the row again, its newest version counts; if somebody has overwritten it since, none does.
    version := case cardinality(found_versions) when 1 then found_versions[1] when 2 then (
        select f.version from tidegate.write_fence f
        where f.subject = p_subject and f.client_id = p_client and f.number = p_number and f.relation_id = p_relation
            and f.key = p_key and f.version = tidegate.push_current(p_relation, p_key)) end;
end $f$;

-- V3, second half: makes the outcomes of what ran durable, in the transaction that ran it, and gives the versions.
create or replace function tidegate.push_finish(p_subject text, p_client uuid, p_first bigint, p_mutation_ids bigint[],
    p_relation_ids integer[], p_relations integer[], p_ops text[], p_keys text[], p_statuses text[], p_codes text[], p_messages text[],
    p_versions uuid[]) returns uuid[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $f$
declare r record;
begin
    for i in 1..cardinality(p_mutation_ids) loop
        continue when p_mutation_ids[i] is null;
        if p_statuses[i] = 'accepted' then
            r := tidegate.push_produced(p_subject, p_client, p_first + i - 1, p_relation_ids[p_relations[i]], p_keys[i]);
            if not r.fenced then
                raise exception using errcode = 'TG102', message = 'tidegate: a write was not fenced';
            end if;
            -- push_begin has recorded the rest.
            continue when p_ops[i] = 'delete';
            p_versions[i] := coalesce(r.version, p_versions[i]);
        end if;
        -- Only records of this transaction can be decided: nobody rewrites an outcome.
        update tidegate.client_mutation m set status = p_statuses[i], code = p_codes[i], message = p_messages[i], version = p_versions[i]
        where m.mutation_id = p_mutation_ids[i] and m.xid = pg_current_xact_id();
    end loop;
    return p_versions;
end $f$;

-- Code and message of a refusal. Q1: PostgreSQL's own message and DETAIL may hold values and are not used; the names of a
-- constraint or column, and SQLSTATEs, may.
create or replace function tidegate.push_refusal(p_sqlstate text, p_constraint text, p_column text, p_relation oid, p_role text, p_op text,
    out status text, out code text, out message text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $f$
begin
    status := 'rejected';
    code := case
        when p_sqlstate = '23505' and p_op = 'insert' and exists (select from pg_constraint c
            where c.conrelid = p_relation and c.contype = 'p' and c.conname = p_constraint) then 'row_exists'
        when p_sqlstate = '23505' then 'constraint_unique'
        when p_sqlstate = '23503' then 'constraint_foreign_key'
        when p_sqlstate = '23001' then 'constraint_foreign_key'
        when p_sqlstate = '23514' then 'constraint_check'
        when p_sqlstate = '23502' then 'constraint_not_null'
        when p_sqlstate = '23P01' then 'constraint_exclusion'
        -- A policy refuses a row with the SQLSTATE of a missing privilege; the privileges tell which it was.
        when p_sqlstate = '42501' and has_any_column_privilege(p_role, p_relation, 'select') and case p_op
            when 'delete' then has_table_privilege(p_role, p_relation, 'delete')
            when 'update' then has_any_column_privilege(p_role, p_relation, 'update')
            when 'insert' then has_any_column_privilege(p_role, p_relation, 'insert')
            else has_any_column_privilege(p_role, p_relation, 'insert') and has_any_column_privilege(p_role, p_relation, 'update')
            end then 'row_refused'
        when p_sqlstate = '42501' then 'permission_denied'
        -- 27000: the guard and the fence refuse a key change. 54000: such as a value too long for an index.
        when p_sqlstate ~ '^(22|54)' then 'invalid_value'
        else 'database_refused' end;
    if code = 'row_exists' then status := 'conflict'; end if;
    message := left(case
        when nullif(p_constraint, '') is not null then format('constraint "%s" (SQLSTATE %s)', p_constraint, p_sqlstate)
        when nullif(p_column, '') is not null then format('column "%s" (SQLSTATE %s)', p_column, p_sqlstate)
        else format('SQLSTATE %s', p_sqlstate) end, 200);
end $f$;

-- Runs one push. Arrays are parallel: one entry per mutation, or, for p_relation_*, one per relation used.
--
-- p_refused: code of a mutation that the gateway has refused before any SQL (DT-05), with p_refused_messages; it only gets its
-- record. p_failed: SQLSTATE with which its transaction could not commit; likewise.
-- p_values: each mutation's column values as one array literal, $1 of its statement; $2 is the key, $3 the base.
-- p_statements: guarded by push_holds_<relation> where there is a base. p_inserts: what to run where the base is a mutation that deleted the
-- row: null where that is a conflict.
-- p_defers: whether anything in the database can be deferred.
-- p_transient: SQLSTATEs, as a regular expression, that are no refusals: the transaction fails with them.
-- `current`: of conflicts found now, the row's newest version.
create or replace function tidegate.push(p_subject text, p_client uuid, p_new boolean, p_acked bigint, p_prune boolean, p_registry integer,
    p_unmaterialized_max integer, p_role text, p_claims text, p_transient text, p_defers boolean, p_atomic boolean, p_first bigint,
    p_relation_ids integer[], p_relation_oids oid[], p_relation_names text[], p_relation_secured boolean[], p_relation_probes text[],
    p_fingerprints bytea[], p_relations integer[], p_ops text[], p_keys text[], p_bases uuid[], p_afters bigint[],
    p_statements text[], p_inserts text[], p_values text[], p_refused text[], p_refused_messages text[], p_failed text[],
    out state text, out stop text, out statuses text[], out codes text[], out messages text[], out versions uuid[], out current uuid[])
language plpgsql volatile as $f$
declare
    b record;
    r record;
    total integer := pg_catalog.cardinality(p_fingerprints);
    i integer;
    at integer;
    unit_end integer;
    rel integer;
    base uuid;
    statement text;
    same_key boolean;
    visible boolean;
    affected bigint;
    refused_status text;
    refused_code text;
    refused_state text;
    refused_constraint text;
    refused_column text;
    unusable text[];
    -- Assigning is cheaper than PERFORM, which runs a query.
    set_to text;
    -- The application's triggers and policies may leave the role changed.
    login text := session_user;
begin
    b := tidegate.push_begin(p_subject, p_client, p_new, p_acked, p_prune, p_registry, p_unmaterialized_max, p_first, p_fingerprints,
        p_relations, p_keys, p_afters);
    state := b.state; stop := b.stop;
    current := pg_catalog.array_fill(null::uuid, array[total]);
    statuses := b.statuses; codes := b.codes; messages := b.messages; versions := b.versions;
    if state <> 'ok' or b.run_from is null then
        return;
    end if;

    -- Once per transaction, local to it. What PostgREST sets, so that policies written for it work unchanged.
    set_to := pg_catalog.set_config('request.jwt.claims', p_claims, true);
    set_to := pg_catalog.set_config('request.jwt.claim.sub', p_subject, true);
    -- The connection has these from its start; a trigger may have changed them for good.
    if pg_catalog.current_setting('DateStyle') not like 'ISO%' or pg_catalog.current_setting('IntervalStyle') <> 'iso_8601'
        or pg_catalog.current_setting('TimeZone') <> 'UTC' or pg_catalog.current_setting('row_security') <> 'on' then
        set_to := pg_catalog.set_config('DateStyle', 'ISO', true);
        set_to := pg_catalog.set_config('IntervalStyle', 'iso_8601', true);
        set_to := pg_catalog.set_config('TimeZone', 'UTC', true);
        set_to := pg_catalog.set_config('row_security', 'on', true);
    end if;
    set_to := pg_catalog.set_config('role', p_role, true);
    for rel in 1..pg_catalog.cardinality(p_relation_ids) loop
        -- G1: the name must still mean the table that was registered.
        if pg_catalog.to_regclass(p_relation_names[rel])::oid is distinct from p_relation_oids[rel] then
            raise exception using errcode = 'TG101', message = 'tidegate: a registered table was replaced';
        end if;
        -- RLS must apply to the role now, not only have been on at registration.
        if p_relation_secured[rel] and not pg_catalog.row_security_active(p_relation_oids[rel]) then
            unusable[rel] := 'row-level security does not apply';
        end if;
    end loop;
    set_to := pg_catalog.set_config('role', login, true);

    i := b.run_from;
    while i <= total loop
        unit_end := case when p_atomic then total else i end;
        at := null; refused_code := null;
        begin
            set_to := pg_catalog.set_config('role', p_role, true);
            for j in i..unit_end loop
                at := j;
                rel := p_relations[j];
                base := p_bases[j];
                refused_status := 'rejected';
                if p_failed[j] is not null then
                    refused_code := 'failed';
                elsif p_refused[j] is not null then
                    refused_code := p_refused[j]; refused_status := case when refused_code = 'conflict' then refused_code else 'rejected' end;
                elsif unusable[rel] is not null then
                    refused_code := 'not_writable';
                end if;
                exit when refused_code is not null;

                statement := p_statements[j];
                if p_afters[j] is not null then
                    if p_afters[j] >= p_first + b.run_from - 1 then
                        refused_state := statuses[p_afters[j] - p_first + 1]; base := versions[p_afters[j] - p_first + 1];
                    else
                        refused_state := b.after_statuses[j]; base := b.after_versions[j];
                    end if;
                    if refused_state is distinct from 'accepted' then
                        refused_code := 'dependency_rejected'; exit;
                    elsif base is null then
                        statement := p_inserts[j];
                        if statement is null then
                            refused_status := 'conflict'; refused_code := 'conflict'; exit;
                        end if;
                    end if;
                end if;

                set_to := pg_catalog.set_config('tidegate.mutation', b.mutation_ids[j]::text, true);
                execute statement into same_key using p_values[j]::text[], p_keys[j], base;
                get diagnostics affected = row_count;
                if affected <> 1 then
                    execute p_relation_probes[rel] into visible using p_keys[j];
                    if visible then
                        -- Visible, and yet nothing happened: the base did not hold, or a policy or trigger swallowed the change.
                        refused_code := case when base is not null then 'conflict' else 'row_refused' end;
                    else
                        refused_code := case when base is not null then 'conflict' when p_ops[j] in ('insert', 'upsert') then 'row_refused' else 'row_not_found' end;
                    end if;
                    refused_status := case refused_code when 'conflict' then 'conflict' else 'rejected' end;
                    exit;
                elsif same_key is not true then
                    refused_code := 'key_change'; exit;
                end if;
                statuses[j] := 'accepted'; codes[j] := null; messages[j] := null;
                -- A later one of this push builds on it: it needs the version now.
                if j < total and p_first + j - 1 = any (p_afters) and p_ops[j] <> 'delete' then
                    if p_defers and not p_atomic then
                        set constraints all immediate;
                    end if;
                    set_to := pg_catalog.set_config('role', login, true);
                    r := tidegate.push_produced(p_subject, p_client, p_first + j - 1, p_relation_ids[rel], p_keys[j]);
                    versions[j] := r.version;
                    set_to := pg_catalog.set_config('role', p_role, true);
                end if;
            end loop;
            if refused_code is not null then
                -- Undoes what the unit did; caught right below.
                raise exception using errcode = 'TG100', message = 'tidegate: refused';
            end if;
            -- Deferred constraints and triggers fire here, as the application's role and as part of this unit.
            if p_defers then
                if p_atomic then
                    at := null;
                end if;
                set constraints all immediate;
            end if;
        exception when others or assert_failure then
            -- The block's settings went with it, the role too.
            set_to := pg_catalog.set_config('role', login, true);
            get stacked diagnostics refused_state = returned_sqlstate, refused_constraint = constraint_name, refused_column = column_name;
            if refused_state ~ p_transient then
                raise;
            end if;
            if refused_state = '42501' and not pg_catalog.has_schema_privilege(p_role, 'tidegate', 'usage') then
                raise exception using errcode = 'TG103', message = 'tidegate: the role of pushes lacks rights: run tidegate.grant_push';
            end if;
            rel := p_relations[coalesce(at, i)];
            if refused_state <> 'TG100' or refused_code = 'failed' then
                r := tidegate.push_refusal(case refused_code when 'failed' then p_failed[at] else refused_state end,
                    refused_constraint, refused_column, p_relation_oids[rel], p_role, p_ops[coalesce(at, i)]);
                refused_status := r.status; refused_code := r.code; refused_constraint := r.message;
            else
                refused_constraint := case when refused_code = p_refused[at] then p_refused_messages[at]
                    when refused_code = 'not_writable' then unusable[rel] end;
            end if;
            for j in i..unit_end loop
                versions[j] := null;
                if at is null or at = j then
                    if refused_status = 'conflict' and p_relations[j] is not null and p_keys[j] is not null then
                        current[j] := tidegate.push_current(p_relation_ids[p_relations[j]], p_keys[j]);
                        -- The base holds: so it was a policy or a trigger that kept the row from the statement.
                        if refused_code = 'conflict' and (current[j] = base
                            or current[j] is null and visible and base = '00000000-0000-0000-0000-000000000000') then
                            refused_status := 'rejected'; refused_code := 'row_refused';
                        end if;
                    end if;
                    statuses[j] := refused_status; codes[j] := refused_code; messages[j] := refused_constraint;
                else
                    statuses[j] := 'rejected'; codes[j] := 'batch_rejected'; messages[j] := null;
                end if;
            end loop;
        end;
        i := unit_end + 1;
    end loop;
    set_to := pg_catalog.set_config('role', login, true);
    set_to := pg_catalog.set_config('tidegate.mutation', '', true);
    versions := tidegate.push_finish(p_subject, p_client, p_first, b.mutation_ids, p_relation_ids, p_relations, p_ops, p_keys, statuses,
        codes, messages, versions);
    -- Should anything still be deferred, it fires at the commit, as the application's role.
    set_to := pg_catalog.set_config('role', p_role, true);
end $f$;

-- The usual push, one mutation that is accepted, in the fewest steps: no savepoint, and few expressions, each of which PL/pgSQL
-- prepares anew in every transaction. Whatever is not usual fails with TG110, which undoes everything, or, where the number is not
-- the next one, is not `taken` and has changed nothing: then tidegate.push decides.
create or replace function tidegate.push_begin_one(p_subject text, p_client uuid, p_acked bigint, p_registry integer,
    p_unmaterialized_max integer, p_number bigint, p_fingerprint bytea, p_base uuid, p_after bigint, out mutation_id bigint, out base uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $f$
begin
    -- As the usual case of push_begin.
    with next as (
        update tidegate.client t set last_number = p_number, settled = greatest(t.settled, p_acked)
        where t.subject = p_subject and t.client_id = p_client and t.last_number = p_number - 1 and p_acked <= t.last_number
            and (select g.id from tidegate.registry_generation g order by g.id desc limit 1) = p_registry
            and coalesce((select f.number from tidegate.write_fence f where f.subject = p_subject and f.client_id = p_client
                and f.materialized_commit_lsn is null and f.covered_by is null order by f.number limit 1), p_number)
                > p_number - p_unmaterialized_max
        returning 1
    )
    insert into tidegate.client_mutation as c (subject, client_id, number, fingerprint, status)
    select p_subject, p_client, p_number, p_fingerprint, 'accepted' from next
    returning c.mutation_id, case when p_after is null then p_base else (select m.version from tidegate.client_mutation m
        where m.subject = p_subject and m.client_id = p_client and m.number = p_after and m.status = 'accepted') end
    into mutation_id, base;
end $f$;

create or replace function tidegate.push_finish_one(p_subject text, p_client uuid, p_number bigint, p_mutation_id bigint, p_relation integer,
    p_key text, p_delete boolean) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $f$
declare made uuid;
begin
    update tidegate.client_mutation m set version = case when not p_delete then f.version end
    from (select min(w.version::text)::uuid as version from tidegate.write_fence w
        where w.subject = p_subject and w.client_id = p_client and w.number = p_number and w.relation_id = p_relation and w.key = p_key
        having count(*) = 1) f
    where m.mutation_id = p_mutation_id returning m.version into made;
    if not found then
        raise exception using errcode = 'TG110', message = 'tidegate: not usual';
    end if;
    return made;
end $f$;

create or replace function tidegate.push_one(p_subject text, p_client uuid, p_acked bigint, p_registry integer, p_unmaterialized_max integer,
    p_role text, p_claims text, p_number bigint, p_fingerprint bytea, p_relation_id integer, p_relation_oid oid, p_relation_name text,
    p_secured boolean, p_delete boolean, p_key text, p_base uuid, p_after bigint, p_statement text, p_values text,
    out taken boolean, out version uuid)
language plpgsql volatile as $f$
declare
    b record;
    set_to text;
    same_key boolean;
begin
    b := tidegate.push_begin_one(p_subject, p_client, p_acked, p_registry, p_unmaterialized_max, p_number, p_fingerprint, p_base, p_after);
    if b.mutation_id is null then
        taken := false; return;
    end if;
    set_to := pg_catalog.set_config('request.jwt.claims', p_claims, true) || pg_catalog.set_config('request.jwt.claim.sub', p_subject, true)
        || pg_catalog.set_config('tidegate.mutation', b.mutation_id::text, true) || pg_catalog.set_config('role', p_role, true);
    if pg_catalog.to_regclass(p_relation_name)::oid is distinct from p_relation_oid
        or p_secured and not pg_catalog.row_security_active(p_relation_oid) or p_after is not null and b.base is null
        or pg_catalog.current_setting('DateStyle') not like 'ISO%' or pg_catalog.current_setting('IntervalStyle') <> 'iso_8601'
        or pg_catalog.current_setting('TimeZone') <> 'UTC' or pg_catalog.current_setting('row_security') <> 'on' then
        raise exception using errcode = 'TG110', message = 'tidegate: not usual';
    end if;
    execute p_statement into same_key using p_values::text[], p_key, b.base;
    if same_key is not true then
        raise exception using errcode = 'TG110', message = 'tidegate: not usual';
    end if;
    set_to := pg_catalog.set_config('role', session_user, true) || pg_catalog.set_config('tidegate.mutation', '', true);
    version := tidegate.push_finish_one(p_subject, p_client, p_number, b.mutation_id, p_relation_id, p_key, p_delete);
    taken := true;
    set_to := pg_catalog.set_config('role', p_role, true);
end $f$;

-- V3: settles the numbers, ascending, whose outcome the client does not know. `failure`: gap or client_expired, for the rest.
create or replace function tidegate.push_void(p_subject text, p_client uuid, p_new boolean, p_numbers bigint[],
    out failure text, out statuses text[], out codes text[], out messages text[], out versions uuid[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $f$
declare
    c record;
    m record;
begin
    if p_new then
        insert into tidegate.client (subject, client_id) values (p_subject, p_client) on conflict do nothing;
    end if;
    select * into c from tidegate.client t where t.subject = p_subject and t.client_id = p_client for update;
    if not found then
        failure := 'client_expired'; return;
    end if;
    -- Whole from the start: an array whose first assigned element is a later one would begin there.
    statuses := array_fill(null::text, array[cardinality(p_numbers)]); codes := statuses; messages := statuses;
    versions := array_fill(null::uuid, array[cardinality(p_numbers)]);
    for i in 1..cardinality(p_numbers) loop
        select * into m from tidegate.client_mutation q
        where q.subject = p_subject and q.client_id = p_client and q.number = p_numbers[i];
        if found then
            statuses[i] := m.status; codes[i] := m.code; messages[i] := m.message; versions[i] := m.version;
        elsif p_numbers[i] <= c.last_number then
            statuses[i] := 'rejected'; codes[i] := 'outcome_expired';
        elsif p_numbers[i] = c.last_number + 1 then
            -- Whatever content comes under this number later gets this outcome, so no fingerprint is kept.
            insert into tidegate.client_mutation (subject, client_id, number, fingerprint, status, code)
            values (p_subject, p_client, p_numbers[i], sha256(''), 'discarded', 'discarded');
            c.last_number := p_numbers[i];
            statuses[i] := 'discarded'; codes[i] := 'discarded';
        else
            failure := 'gap'; exit;
        end if;
    end loop;
    update tidegate.client t set last_number = c.last_number
    where t.subject = p_subject and t.client_id = p_client and t.last_number <> c.last_number;
end $f$;

-- The registry in force and the types that a push casts to: OID of a captured column's type, name of its base type. `defers`:
-- whether any constraint or trigger may be deferred, so that mutations must not share a transaction.
create or replace function tidegate.push_registry(out id integer, out snapshot text, out types jsonb, out defers boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $f$
    select g.id, g.snapshot::text,
        (select coalesce(jsonb_object_agg(c.oid, format('%I.%I', n.nspname, t.typname)), '{}')
         from (select distinct col ->> 'type_oid' as oid from jsonb_path_query(g.snapshot, '$.relations[*].columns[*]') col) c
         join pg_type t on t.oid = tidegate.base_type(c.oid::oid) join pg_namespace n on n.oid = t.typnamespace),
        exists (select from pg_trigger where tgdeferrable)
    from tidegate.registry_generation g order by g.id desc limit 1
$f$;

-- The registry as it was in generation `p_id`, for mutations that were written under it; null: there was none.
create or replace function tidegate.push_registry_of(p_id integer) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $f$
    select g.snapshot::text from tidegate.registry_generation g where g.id = p_id
$f$;

-- Removes write fences that nobody will ask for again: materialized or covered, their outcome acknowledged, and older than any
-- socket can lag. Gives how many. Called now and then by each gateway; rows that another one is removing are skipped.
create or replace function tidegate.prune_write_fences(p_keep interval, p_limit integer) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $f$
    with old as (
        select f.fence_id from tidegate.write_fence f
        -- Retention removes records of transactions only when they are older still.
        where (f.materialized_commit_lsn is not null
                and not exists (select from tidegate.source_transaction t where t.generation = f.generation
                    and t.commit_lsn = f.materialized_commit_lsn and t.committed_at >= clock_timestamp() - p_keep)
                or exists (select from tidegate.stream_reset r where r.reset_id = f.covered_by
                    and r.phase in ('activated', 'cleaned') and r.phase_at < clock_timestamp() - p_keep))
            and not exists (select from tidegate.client_mutation m
                where m.subject = f.subject and m.client_id = f.client_id and m.number = f.number)
        limit p_limit for update of f skip locked
    ), gone as (
        delete from tidegate.write_fence f using old where f.fence_id = old.fence_id returning 1
    )
    select count(*) from gone
$f$;

-- What pushes need, and nothing more: the login role calls, the application's roles only compare versions. Run by the owner of the
-- schema tidegate, once per role.
create or replace function tidegate.grant_push(p_login name, p_roles name[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $f$
declare
    f regprocedure;
    r name;
begin
    execute format('grant usage on schema tidegate to %I', p_login);
    for f in select p.oid from pg_proc p where p.pronamespace = 'tidegate'::regnamespace
             and (p.proname ~ '^push(_|$)' and p.proname !~ '^push_holds_' or p.proname = 'prune_write_fences')
    loop execute format('grant execute on function %s to %I', f, p_login); end loop;
    -- Their statements name push_holds_<relation>, which is open to whoever may use the schema.
    foreach r in array p_roles loop
        execute format('grant usage on schema tidegate to %I', r);
    end loop;
end $f$;

do $f$
declare f regprocedure;
begin
    for f in select p.oid::regprocedure from pg_proc p where p.pronamespace = 'tidegate'::regnamespace
             and (p.proname ~ '^push(_|$)' and p.proname !~ '^push_holds_[0-9]' or p.proname in ('prune_write_fences', 'grant_push', 'create_push_functions'))
    loop execute format('revoke all on function %s from public', f); end loop;
end $f$;
