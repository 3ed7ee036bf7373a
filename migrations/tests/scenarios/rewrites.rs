//! Places of rows that move without a row operation: the order state counts within one file only.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("rewrite: cluster within the transaction")
            .setup("insert into item (id) select generate_series(1, 9)")
            .run("begin; update item set rev = 2; delete from item where id in (1, 9); cluster item using item_pkey; update item set rev = 3;
                delete from item where id = 5; insert into item (id) values (5), (1), (9); update item set rev = 4; commit")
            .gives_count(9 + 2 + 7 + 1 + 3 + 9),
        scenario("rewrite: a column's type within the transaction")
            .setup(ROWS)
            .run("begin; update item set rev = 2; alter table item alter column rev type bigint; update item set rev = 3; delete from item where id = 1; insert into item (id) values (1); commit")
            .gives_count(3 + 3 + 1 + 1),
        scenario("rewrite: a column with a volatile default within the transaction")
            .setup(ROWS)
            .run("begin; delete from item where id = 2; alter table item add column token text default md5(random()::text); insert into item (id) values (2); update item set rev = 3; commit")
            .gives_count(1 + 1 + 3),
        scenario("rewrite: rolled back with its savepoint")
            .setup(ROWS)
            .run("begin; update item set rev = 2; savepoint s; cluster item using item_pkey; update item set rev = 3; rollback to s; update item set rev = 4; delete from item where id = 1; insert into item (id) values (1); commit")
            .gives_count(3 + 3 + 1 + 1),
        scenario("rewrite: twice within the transaction")
            .setup(ROWS)
            .run("begin; cluster item using item_pkey; update item set rev = 2; alter table item alter column rev type bigint; update item set rev = 3; cluster item using item_pkey; delete from item; commit")
            .gives_count(9),
        scenario("rewrite: the first place of a chain is taken again in the new file")
            .setup("insert into item (id) select generate_series(1, 8)")
            .run("begin; delete from item where id = 8; cluster item using item_pkey; insert into item (id) values (8); update item set rev = 2 where id = 8; delete from item where id = 8; insert into item (id) values (8); commit")
            .gives(&["item D 8", "item I 8", "item U 8", "item D 8", "item I 8"]),
        scenario("rewrite: a chain that went on between rewrite and insertion")
            .setup("insert into item (id) select generate_series(1, 8)")
            .run("begin; update item set rev = 3 where id = 8; cluster item using item_pkey; update item set rev = 4 where id = 8; delete from item where id = 8; insert into item (id) select generate_series(8, 40); commit")
            .gives_count(3 + 33),
        scenario("rewrite: does not hide an order that is broken")
            .setup(ROWS)
            .setup("select app_trigger(' early', 'after update', 'item', 'for each row', 'if new.rev = 3 then update item set rev = 4 where id = new.id; end if; return null;')")
            .refused("begin; update item set rev = 2; cluster item using item_pkey; update item set rev = 3; commit"),
        scenario("rewrite: vacuum full between transactions")
            .setup("insert into item (id) select generate_series(1, 20); delete from item where id % 2 = 0; update item set rev = 2")
            .run("vacuum full item")
            .run("update item set rev = 3; delete from item where id < 10; insert into item (id) select generate_series(2, 8, 2)")
            .gives_count(10 + 5 + 4),
        scenario("rewrite: vacuum between transactions, places used again")
            .setup("insert into item (id) select generate_series(1, 20); delete from item where id > 1")
            .run("vacuum item")
            .run("insert into item (id) select generate_series(20, 2, -1); update item set rev = 2")
            .run("vacuum (freeze, index_cleanup on) item")
            .run("delete from item; insert into item (id) select generate_series(1, 20)")
            .gives_count(19 + 20 + 20 + 20),
        scenario("rewrite: unlogged and logged again")
            .setup(ROWS)
            .run("begin; update item set rev = 2; alter publication tidegate drop table item; alter table item set unlogged; alter table item set logged; alter publication tidegate add table item; update item set rev = 3; commit")
            .gives_count(6),
        scenario("rewrite: of indexes only")
            .setup(ROWS)
            .run("begin; update item set rev = 2; reindex table item; update item set rev = 3; alter table item drop constraint item_pkey, add primary key (id); delete from item; commit")
            .gives_count(9),
        scenario("rewrite: a column dropped and added in mid-transaction")
            .setup(ROWS)
            .run("begin; update item set rev = 2; alter table item drop column title; update item set rev = 3; alter table item add column title text default 'new'; update item set rev = 4; commit")
            .gives_count(9),
        scenario("rewrite: of our own table")
            .setup(ROWS)
            .run("begin; update item set rev = 2; cluster tidegate.row_version_2 using row_version_2_pkey; update item set rev = 3; delete from item; commit")
            .run("vacuum full tidegate.row_version_2")
            .run("insert into item (id) values (1); update item set rev = 2")
            .gives_count(9 + 2),
        scenario("rewrite: a table renamed and moved within the transaction")
            .setup(ROWS)
            .run("begin; update item set rev = 2; alter table item rename to thing; update thing set rev = 3; create schema elsewhere; alter table thing set schema elsewhere; delete from elsewhere.thing where id = 1;
                alter table elsewhere.thing set schema public; alter table thing rename to item; commit")
            .gives_count(7),
    ]
}
