-- Every kind of change that pgoutput has a form for, and the orders in which rows and fences come (TX-05, TX-09, DT-01, DT-03).

begin;
insert into list values ('L1', 'one'), ('L2', 'two');
select tidegate.register_table('public.item', '{"columns": ["id", "list_id", "title", "body", "meta", "rev"], "scopes": [{"name": "list:{list_id}"}, {"name": "hot", "where": "rev > 5"}]}');
insert into item (id, list_id, title) values (1, 'L1', 'with its registration');
commit;
select tidegate.register_table('public.odd', '{"scopes": [{"name": "odd:{id}"}]}');
select tidegate.register_grant('{"scope": "list:{member.list_id}", "from": "public.member", "where": "member.user_id = {subject.id} and active"}');
insert into outside values (1);
insert into item select g, 'L1', 'bulk', string_agg(md5(g::text || h::text), ''), '{"n": 9007199254740993}', 1 from generate_series(10, 12) g, generate_series(1, 80) h group by g;
update item set title = 'b' where id = 10;
begin;
insert into item select 13, 'L2', 'a', string_agg(md5(h::text), ''), null, 1 from generate_series(1, 80) h;
update item set title = 'b' where id = 13;
update item set rev = 9 where id in (10, 13);
commit;
insert into item (id, list_id, title) values (20, 'L1', 'bump'), (21, 'L2', 'bump');
insert into item (id, list_id, title) values (22, 'L1', 'late'), (23, 'L2', 'late');
begin;
insert into item (id, list_id, title) values (30, 'L1', 'kept');
savepoint s; insert into item (id, list_id, title) values (31, 'L1', 'rolled back'); rollback to s;
update item set title = 'kept twice' where id = 30;
commit;
insert into item (id, list_id, title) values (30, 'L2', 'x'), (32, 'L2', 'y') on conflict (id) do update set title = excluded.title, list_id = excluded.list_id;
insert into item (id, list_id, title) values (30, 'L2', 'z') on conflict do nothing;
update item set title = title where id = 32;
merge into item t using (values (32::bigint), (33::bigint)) s(id) on t.id = s.id when matched then delete when not matched then insert (id, list_id, title) values (s.id, null, 'merged');
begin; update item set list_id = 'L2' where id = 11; update item set list_id = 'L1' where id = 11; update item set list_id = 'L2' where id = 11; commit;
begin; delete from item where id = 12; insert into item (id, list_id, title) values (12, 'L1', 'again'); commit;
begin; insert into item (id, list_id) values (6, 'L1'); delete from item where id = 6; commit;
begin; insert into list values ('L9', 'gone'); insert into item (id, list_id) values (40, 'L9'), (41, 'L9'); commit;
delete from list where id = 'L9';
insert into list values (repeat('k', 3000), 'long'), ('', 'empty'), (E'a:b/"\'é', null);
insert into odd values
 ('00000000-0000-0000-0000-0000000000aa', 'NaN', 'NaN', 'Infinity', 'infinity', '-infinity', '4713-01-01 00:00:00+00 BC', '-1 day +02:03', '\x00ff10', true, '{a,NULL,"x,\"y\\"}', '{"a": "x"}'),
 ('00000000-0000-0000-0000-0000000000bb', '1e-400', 0.1, 1e-7, '0044-03-15 BC', '2026-11-30 18:55:34.123456', '294276-12-31 23:59:59.999999+00', '1 year 2 months', '', false, '{}', '[]'),
 ('00000000-0000-0000-0000-0000000000cc', null, null, null, null, null, null, null, null, null, '{{a,b},{c,d}}', null);
alter table item add column extra text default 'unseen';
update item set rev = 8, extra = 'x' where id = 1;
insert into member values (1, 'L1', 'ann', true), (2, 'L1', 'ann', true), (3, 'L2', 'bob', false);
begin; delete from member where id = 1; update member set active = true where id = 3; commit;
select pg_logical_emit_message(false, 'tidegate.fence', 'not of any transaction');
select pg_logical_emit_message(true, 'somebody.else', 'not ours');
select pg_logical_emit_message(true, 'tidegate.marker', '1:00000000-0000-0000-0000-00000000002a');
