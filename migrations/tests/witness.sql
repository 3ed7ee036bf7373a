-- Purpose: an independent witness of which row image each fence stands for. A trigger that fires right behind the fence, for the
-- same row operation, puts that image into the WAL as a message of its own, so that the test can compare the order of fences with
-- the order of the decoded images, not only of their operations. Caller: fence.rs.

create function public.witness_row() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $f$
begin
    perform pg_logical_emit_message(true, 'test.witness', jsonb_build_object('oid', tg_relid::bigint, 'op', left(tg_op, 1),
        'row', case tg_op when 'DELETE' then to_jsonb(old) else to_jsonb(new) end)::text);
    return null;
end $f$;

-- Registers a table and gives it its witness: its name sorts right behind that of the fence, and before that of the freeze guard.
create function public.watch(name text, definition jsonb default '{}') returns void
language plpgsql as $f$
begin
    perform tidegate.register_table(name, definition);
    perform public.bear_witness(name);
end $f$;

create function public.bear_witness(name text) returns void
language plpgsql as $f$
begin
    execute format('create trigger "!tidegate_fence_witness" after insert or update or delete on %s
        for each row execute function public.witness_row()', name);
    execute format('alter table %s enable always trigger "!tidegate_fence_witness"', name);
end $f$;

-- Writes that bypass every trigger, as a restore or a clean-up script makes them.
create function public.silence(name text) returns void
language plpgsql as $f$
begin
    execute format('alter table %s disable trigger user', name);
end $f$;

create function public.awaken(name text) returns void
language plpgsql as $f$
declare t name;
begin
    for t in select tgname from pg_trigger where tgrelid = name::regclass and tgname ~ 'tidegate' loop
        execute format('alter table %s enable always trigger %I', name, t);
    end loop;
end $f$;

-- A trigger of the application's: its name, when, on what, and the body of its function.
create function public.app_trigger(name text, timing text, on_table text, level text, body text) returns void
language plpgsql as $f$
begin
    execute format('create function public.%I() returns trigger language plpgsql as %L', name || '_f', 'begin ' || body || ' end');
    execute format('create %s trigger %I %s on %s %s execute function public.%I()',
        case when level like '%deferr%' then 'constraint' else '' end, name, timing, on_table, level, name || '_f');
end $f$;
