-- The baseline of fences: the least that a trigger must do so that a row's version is known and reaches the WAL. One row upserted
-- into a side table, one transactional message. No order check, no key check, no ordinal, no mutation, no pinned search path.
-- Written as well as PL/pgSQL allows: an assignment is evaluated without a query of its own, `perform` is not.
-- {table} is the watched table, with a key `id bigint`.
create table {table}_side (id bigint primary key, version uuid not null) with (fillfactor = 70);
create function {table}_minimal() returns trigger language plpgsql as $f$
declare
    k bigint := case when tg_op = 'DELETE' then old.id else new.id end;
    v uuid := gen_random_uuid();
    l pg_lsn;
begin
    insert into {table}_side as s values (k, v) on conflict (id) do update set version = v;
    l := pg_logical_emit_message(true, 'loadtest.minimal', concat(tg_op, ':', v, ':', k));
    return null;
end $f$;
create trigger minimal after insert or update or delete on {table} for each row execute function {table}_minimal();
