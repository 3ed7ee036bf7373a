//! F9: referential actions never raise 27000 by themselves, also where two of them touch one row.

use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    let mut all = one_level();
    all.extend(several_levels());
    all.extend(with_triggers());
    all
}

const LISTS: &str = "insert into list values ('a'), ('b'); insert into item (id, list_id) values (1, 'a'), (2, 'a'), (3, 'b')";
const PEOPLE: &str =
    "insert into person values (1), (2); insert into task values (1, 1, 1), (2, 1, 2), (3, 2, 1)";

/// A child of `list` with this action, registered.
fn child(action: &str) -> String {
    format!("create table public.child (id int primary key, list_id text default 'b' references list on update cascade {action}, n int default 0); select public.watch('public.child');
        insert into list values ('a'), ('b'); insert into child values (1, 'a'), (2, 'a'), (3, 'b')")
}

fn one_level() -> Vec<Scenario> {
    vec![
        scenario("references: cascade")
            .setup(LISTS)
            .run("delete from list where id = 'a'")
            .gives(&["list D a", "item D 1", "item D 2"]),
        scenario("references: cascade of rows that the transaction has changed")
            .setup(LISTS)
            .run("update item set rev = 2; insert into item (id, list_id) values (4, 'a'); update list set name = 'x'; delete from list where id = 'a'; insert into list values ('a'); insert into item (id, list_id) values (1, 'a')")
            .gives_count(3 + 1 + 2 + 1 + 3 + 1 + 1),
        scenario("references: set null")
            .setup(child("on delete set null"))
            .run("delete from list where id = 'a'; update child set n = 1")
            .gives(&["list D a", "child U 1", "child U 2", "child U 3", "child U 1", "child U 2"]),
        scenario("references: set default")
            .setup(child("on delete set default"))
            .run("delete from list where id = 'a'")
            .gives(&["list D a", "child U 1", "child U 2"]),
        scenario("references: set default to a row that is not there")
            .setup(child("on delete set default"))
            .fails("23503", "delete from list"),
        scenario("references: set null of one column of two")
            .setup("create table public.room (house int, n int, primary key (house, n)); insert into room values (1, 1);
                create table public.guest (id int primary key, house int, n int, foreign key (house, n) references room on delete set null (n)); select public.watch('public.guest'); insert into guest values (1, 1, 1), (2, 1, 1)")
            .run("delete from room")
            .gives(&["guest U 1", "guest U 2"]),
        scenario("references: restrict")
            .setup(child("on delete restrict"))
            .run("do $$ begin delete from list where id = 'a'; exception when foreign_key_violation or restrict_violation then null; end $$; delete from child; delete from list")
            .gives_count(3 + 2),
        scenario("references: update cascade of a column that is not the key")
            .setup("create table public.country (id int primary key, code text unique); create table public.city (id int primary key, code text references country (code) on update cascade on delete cascade);
                select public.watch('public.country'), public.watch('public.city'); insert into country values (1, 'x'); insert into city values (1, 'x'), (2, 'x')")
            .run("update country set code = 'y'; update country set code = 'z'; delete from country")
            .gives(&["country U 1", "city U 1", "city U 2", "country U 1", "city U 1", "city U 2", "country D 1", "city D 1", "city D 2"]),
        scenario("references: update cascade of the parent's key")
            .setup(child("on delete cascade"))
            .refused_key("update list set id = 'c' where id = 'a'"),
        scenario("references: update cascade into the child's key")
            .setup("create table public.head (id int primary key, code text unique); create table public.tail (code text primary key references head (code) on update cascade);
                select public.watch('public.head'), public.watch('public.tail'); insert into head values (1, 'x'); insert into tail values ('x')")
            .refused_key("update head set code = 'y'"),
        scenario("references: a parent that is not registered")
            .setup("create table public.plain (id int primary key); insert into plain values (1); create table public.kept (id int primary key, p int references plain on delete cascade); select public.watch('public.kept'); insert into kept values (1, 1), (2, 1)")
            .run("update kept set p = 1; delete from plain")
            .gives(&["kept U 1", "kept U 2", "kept D 1", "kept D 2"]),
    ]
}

fn several_levels() -> Vec<Scenario> {
    let id = |n: u32| format!("'00000000-0000-0000-0000-{n:012}'");
    let nodes: Vec<String> = (0..20u32)
        .map(|n| format!("({}, {})", id(n), if n == 0 { "null".to_owned() } else { id((n - 1) / 2) }))
        .collect();
    let nodes = format!("insert into node values {}", nodes.join(","));
    let tree = "create table public.tree (id int primary key, parent int references public.tree on delete set null, twin int references public.tree on delete set null); select public.watch('public.tree');
        insert into tree values (1, null, null), (2, 1, 1), (3, 2, 1), (4, 2, 3)";
    let diamond = "create table public.top (id int primary key); create table public.left_side (id int primary key, top int references top on delete cascade);
        create table public.right_side (id int primary key, top int references top on delete cascade);
        create table public.bottom (id int primary key, l int references left_side on delete cascade, r int references right_side on delete ACTION);
        select public.watch('public.' || t) from unnest(array['top', 'left_side', 'right_side', 'bottom']) t;
        insert into top values (1); insert into left_side values (1, 1); insert into right_side values (1, 1); insert into bottom values (1, 1, 1), (2, null, 1), (3, 1, null)";
    vec![
        scenario("two references: both set null, one parent")
            .setup(PEOPLE)
            .run("delete from person where id = 1")
            .gives(&["person D 1", "task U 1", "task U 2", "task U 3", "task U 1"]),
        scenario("two references: both set null, two parents in one statement")
            .setup(PEOPLE)
            .run("delete from person")
            .gives_count(2 + 6),
        scenario("two references: one cascades, the other sets null")
            .setup("create table public.job (id int primary key, a int references person on delete cascade, b int references person on delete set null); select public.watch('public.job');
                insert into person values (1), (2); insert into job values (1, 1, 1), (2, 2, 1), (3, 1, 2)")
            .run("delete from person where id = 1")
            .gives_count(1 + 2 + 1),
        scenario("two references: one sets null, the other cascades")
            .setup("create table public.job (id int primary key, a int references person on delete set null, b int references person on delete cascade); select public.watch('public.job');
                insert into person values (1), (2); insert into job values (1, 1, 1), (2, 2, 1), (3, 1, 2)")
            .run("delete from person where id = 1")
            .gives(&["person D 1", "job U 1", "job U 3", "job D 2", "job D 1"]),
        scenario("two references: set null, then the transaction goes on with the rows")
            .setup(PEOPLE)
            .run("begin; update task set created_by = 2 where id = 1; delete from person; update task set created_by = null; delete from task; insert into task values (1); commit")
            .gives_count(1 + 2 + 6 + 3 + 3 + 1),
        scenario("two references: rolled back and done again")
            .setup(PEOPLE)
            .run("begin; savepoint s; delete from person; rollback to s; delete from person where id = 1; delete from person; commit")
            .gives_count(2 + 6),
        scenario("own table: cascades down a tree")
            .setup(nodes.clone())
            .run("delete from node where parent is null")
            .gives_count(20),
        scenario("own table: the statement deletes parents and children itself")
            .setup(nodes.clone())
            .run(format!("delete from node where id in ({}, {}, {})", id(1), id(3), id(15)))
            .gives_count(12),
        scenario("own table: everything at once")
            .setup(nodes)
            .run("delete from node")
            .gives_count(20),
        scenario("own table: set null within the statement that deletes")
            .setup(tree)
            .run("delete from tree where id in (1, 2)")
            .gives_count(2 + 3),
        scenario("own table: rows that refer to themselves")
            .setup(tree)
            .run("update tree set parent = id, twin = id; delete from tree")
            .gives_count(8),
        scenario("diamond: both sides cascade")
            .setup(diamond.replace("ACTION", "cascade"))
            .run("delete from top")
            .gives_count(1 + 2 + 3),
        scenario("diamond: one side cascades, the other sets null")
            .setup(diamond.replace("ACTION", "set null"))
            .run("delete from top")
            .gives_count(1 + 2 + 3),
        scenario("chain: cascade, set null, and the rows written again")
            .setup("create table public.leaf (id int primary key, item bigint references item on delete set null); select public.watch('public.leaf');
                insert into list values ('a'); insert into item (id, list_id) values (1, 'a'), (2, 'a'); insert into leaf values (1, 1), (2, 2), (3, 1)")
            .run("update leaf set item = 1 where id = 2; delete from list; update leaf set item = null; delete from leaf")
            .gives_count(1 + 1 + 2 + 3 + 3 + 3),
        scenario("circle: two tables that refer to each other")
            .setup("create table public.a (id int primary key, b int); create table public.b (id int primary key, a int references a on delete cascade);
                alter table a add foreign key (b) references b on delete cascade deferrable initially deferred; select public.watch('public.a'), public.watch('public.b');
                begin; insert into a values (1, 1), (2, 2); insert into b values (1, 2), (2, 1); commit")
            .run("delete from a where id = 1")
            .gives_count(4),
    ]
}

fn with_triggers() -> Vec<Scenario> {
    vec![
        scenario("action: and a trigger of the child's that writes the row again")
            .setup(child("on delete set null"))
            .setup("select app_trigger('a_again', 'after update', 'child', 'for each row', 'if new.n < 2 then update child set n = n + 1 where id = new.id; end if; return null;')")
            .run("delete from list where id = 'a'")
            .gives_count(1 + 2 * 3),
        scenario("action: and a trigger of the parent's that deletes the children first")
            .setup(LISTS)
            .setup("select app_trigger(' first', 'after delete', 'list', 'for each row', 'delete from item where list_id = old.id; return null;')")
            .run("delete from list where id = 'a'")
            .gives(&["list D a", "item D 1", "item D 2"]),
        scenario("action: and a trigger of the parent's that fires behind it and finds nothing")
            .setup(LISTS)
            .setup("select app_trigger('z_last', 'after delete', 'list', 'for each row', 'update item set rev = 9 where list_id = old.id; return null;')")
            .run("delete from list where id = 'a'")
            .gives(&["list D a", "item D 1", "item D 2"]),
        scenario("action: and a trigger of the parent's that changes what the action has just changed")
            .setup(child("on delete set null"))
            .setup("select app_trigger('z_last', 'after delete', 'list', 'for each row', 'update child set n = 9 where list_id is null; return null;')")
            .refused("delete from list where id = 'a'"),
        // An action's own fences fire behind all triggers of the statement that caused it.
        scenario("action: the same after the parent's statement")
            .setup(child("on delete set null"))
            .setup("select app_trigger('z_last', 'after delete', 'list', 'for each statement', 'update child set n = 9 where list_id is null; return null;')")
            .refused("delete from list where id = 'a'"),
        scenario("action: the same after the child's statement")
            .setup(child("on delete set null"))
            .setup("select app_trigger('z_last', 'after update', 'child', 'for each statement', 'if exists (select from child where n = 0 and list_id is null) then update child set n = 9 where list_id is null; end if; return null;')")
            .run("delete from list where id = 'a'")
            .gives_count(1 + 2 + 2),
        scenario("action: the same when it is deferred")
            .setup(child("on delete set null"))
            .setup("select app_trigger('z_last', 'after delete', 'list', 'deferrable initially deferred for each row', 'update child set n = 9 where list_id is null; return null;')")
            .run("delete from list where id = 'a'")
            .gives_count(1 + 2 + 2),
        scenario("action: kept from rows by a trigger before them")
            .setup(LISTS)
            .setup("select app_trigger('keep', 'before delete', 'item', 'for each row', 'if old.id = 1 then return null; end if; return old;')")
            .run("delete from list where id = 'a'")
            .gives(&["list D a", "item D 2"]),
        scenario("action: in the replica role there is none, and fences fire")
            .setup(LISTS)
            .run("set session_replication_role = replica; delete from list where id = 'a'; update item set rev = 2; reset session_replication_role")
            .gives(&["list D a", "item U 1", "item U 2", "item U 3"]),
    ]
}
